"""The `llm` tool with pairs on this machine as its models."""

import asyncio
import os
import subprocess
import sys

import llm
import pytest
from hub_pairs import own_profile

import specdec_cli
from specdec_cli import llm_models


@pytest.fixture
def pairs(chatting):
    """Two profiles: a pair that can converse, and one that is missing."""
    _, target, _, draft = chatting
    own_profile("mine", f"target: {target}\ndraft: {draft}\nsettings:\n  ctx: 256\n  threads: 1\n")
    own_profile("missing", "target: org/nothing-GGUF:Q4_K_M\n")
    llm_models._loaded.cache_clear()
    found = {}
    llm_models.register_models(lambda *both: found.update({both[0].model_id: both}))
    assert {"specdec/mine", "specdec/demo"} <= found.keys() and "specdec/missing" not in found
    yield found
    llm_models._engines("mine")[0].close()


def test_an_answer_and_a_conversation(pairs):
    model, _ = pairs["specdec/mine"]
    conversation = model.conversation()
    first = conversation.prompt("hello", system="Be brief.", max_tokens=8, stream=True)
    pieces = [*first]
    assert len(pieces) > 1 and "".join(pieces) == first.text()
    engine = llm_models._engines("mine")[0]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    sampling = llm_models.SamplingParams(max_tokens=8)
    answer = engine.generate(messages, sampling)
    assert answer.text == first.text()
    assert (first.usage().input, first.usage().output) == (len(answer.prompt), len(answer.tokens))
    second = conversation.prompt("and then?", max_tokens=8)
    messages += [{"role": "assistant", "content": first.text()}, {"role": "user", "content": "and then?"}]
    assert engine.generate(messages, sampling).text == second.text()
    messages += [{"role": "assistant", "content": second.text()}, {"role": "user", "content": "why?"}]
    assert engine.generate(messages, sampling).text == second.reply("why?", max_tokens=8).text()


def test_a_conversation_from_llms_own_log_goes_on(pairs):
    """As `llm -c` loads it: with messages, without responses."""
    model, _ = pairs["specdec/mine"]
    first = model.prompt("hello", max_tokens=8)
    conversation = model.conversation()
    conversation.loaded_messages = [*first.prompt.messages, *first.messages()]
    second = conversation.prompt("and then?", max_tokens=8)
    assert second.text() == first.reply("and then?", max_tokens=8).text()
    assert second.text() != model.prompt("and then?", max_tokens=8).text()


def test_asyncio(pairs):
    """Two first prompts at once load a pair once."""
    blocking, model = pairs["specdec/mine"]
    loaded, load = [], specdec_cli.load

    async def answered():
        response = model.prompt("hello", max_tokens=8)
        return "".join([piece async for piece in response]), await response.usage()

    async def both():
        return await asyncio.gather(answered(), answered())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec_cli.api.load", lambda name: loaded.append(name) or load(name))
        first, second = asyncio.run(both())
    answer = blocking.prompt("hello", max_tokens=8)
    assert loaded == ["mine"] and first == second == (answer.text(), answer.usage()) and answer.usage().output


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
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0 and len(done.stdout) > 5, done.stderr
