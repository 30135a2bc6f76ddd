"""The `llm` tool with pairs on this machine as its models."""

import asyncio
import os
import subprocess
import sys

import llm
import pytest
import tiny
from hub_pairs import own_profile
from serving import TEMPLATE

from specdec_cli import llm_models


@pytest.fixture
def pairs(tmp_path):
    """Two profiles: a pair that can converse, and one that is missing."""
    paths = [tiny.write(tmp_path / f"{role}.gguf", "llama", chat_template=TEMPLATE) for role in ("target", "draft")]
    own_profile("mine", f"target: {paths[0]}\ndraft: {paths[1]}\nsettings:\n  ctx: 256\n  threads: 1\n")
    own_profile("missing", "target: org/nothing-GGUF:Q4_K_M\n")
    llm_models._engine.cache_clear()
    llm_models._async_engine.cache_clear()
    found = {}
    llm_models.register_models(lambda *both: found.update({both[0].model_id: both}))
    assert {"specdec/mine", "specdec/demo"} <= found.keys() and "specdec/missing" not in found
    yield found
    for engine in (llm_models._engine(name) for name in ("mine", "demo")):
        engine.close()


def test_an_answer_and_a_conversation(pairs):
    model, _ = pairs["specdec/mine"]
    conversation = model.conversation()
    first = conversation.prompt("hello", system="Be brief.", max_tokens=8, stream=True)
    pieces = [*first]
    assert len(pieces) > 1 and "".join(pieces) == first.text()
    engine = llm_models._engine("mine")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    sampling = llm_models.SamplingParams(max_tokens=8)
    answer = engine.generate(messages, sampling)
    assert answer.text == first.text()
    assert (first.usage().input, first.usage().output) == (len(answer.prompt), len(answer.tokens))
    second = conversation.prompt("and then?", max_tokens=8)
    messages += [{"role": "assistant", "content": first.text()}, {"role": "user", "content": "and then?"}]
    assert engine.generate(messages, sampling).text == second.text()


def test_asyncio(pairs):
    blocking, model = pairs["specdec/mine"]

    async def main():
        response = model.prompt("hello", max_tokens=8)
        return [piece async for piece in response], await response.usage()

    pieces, usage = asyncio.run(main())
    answer = blocking.prompt("hello", max_tokens=8)
    assert "".join(pieces) == answer.text()
    assert usage == answer.usage() and usage.output


def test_errors_are_those_of_llm(pairs):
    model, _ = pairs["specdec/mine"]
    with pytest.raises(llm.ModelError, match="tokens"):
        model.prompt("x " * 5000).text()
    with pytest.raises(llm.ModelError, match="temp"):
        model.prompt("x", temperature=-1.0).text()


@pytest.mark.slow
def test_the_command_finds_them(tmp_path):
    own = os.environ | {"LLM_USER_PATH": str(tmp_path / "llm")}
    command = [sys.executable, "-m", "llm", "-m", "specdec/demo", "-o", "max_tokens", "12", "def f("]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and len(done.stdout) > 5, done.stderr
