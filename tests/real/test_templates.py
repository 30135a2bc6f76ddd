"""Chat templates and end tokens of two families: what a model reads, and where its answer ends."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from driver import run

from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.engine import one_session
from specdec_cli.gguf import chat_template as chat
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.settings.settings import Settings
from specdec_cli.weights import prompt

DEFAULT_SYSTEM = {
    "smol": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "qwen_small": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
}
END = {"smol": 2, "qwen_small": 151645}
"""The token <|im_end|>."""
QUESTION = "What is the capital of France? Answer in one short sentence."


def chat_ml(system: str, question: str) -> str:
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(params=END)
def name(request):
    return request.param


@pytest.fixture
def path(name, request):
    return request.getfixturevalue(name)


@pytest.fixture
def model(path):
    with Interrupt() as interrupt, closing(Model(path, Placement(0), interrupt)) as model:
        yield model


def test_the_prompt(name, path, model):
    """The template's marks are single tokens, none is doubled, and --raw has none of them."""
    header, start = read_header(path), END[name] - 1
    assert chat.render(header, [{"role": "user", "content": QUESTION}]) == chat_ml(DEFAULT_SYSTEM[name], QUESTION)
    read = prompt.tokenize(QUESTION, model, header, "Be brief.")
    tokens = read.tokens
    assert tokens == model.tokenize(chat_ml("Be brief.", QUESTION), add_bos=False) and read.notes == ()
    assert tokens[0] == start and tokens.count(start) == 3 and tokens.count(END[name]) == 2
    assert b"".join(map(model.piece, tokens)).decode() == f"system\nBe brief.\nuser\n{QUESTION}\nassistant\n"
    raw = prompt.tokenize(QUESTION, model, header, "Be brief.", raw=True)
    assert b"".join(map(model.piece, raw.tokens)).decode() == QUESTION
    assert len(raw.notes) == 1 and "--system has no effect" in raw.notes[0]
    assert model.is_end(END[name]) and not model.is_end(start)


@pytest.mark.parametrize("system", [(), ("--system", "You answer in English, in one sentence.")])
def test_an_answer_ends_at_the_templates_end_token(name, path, model, system):
    done = run(QUESTION, *system, "-m", path, "--drafter", "ngram", "-k", 3, "-n", 60, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["finish_reason"] == "stop" and found["tokens"][-1] == END[name]
    assert found["completion_tokens"] == len(found["tokens"]) < 60
    assert "Paris" in found["text"] and "<|" not in found["text"]
    header = read_header(path)
    messages = [{"role": "system", "content": system[1]}] if system else []
    rendered = chat.render(header, [*messages, {"role": "user", "content": QUESTION}])
    assert found["prompt_tokens"] == len(model.tokenize(rendered, add_bos=False))


def test_a_second_turn_reads_what_the_template_renders(path):
    with one_session(Settings(target=str(path), drafter="none", max_tokens=60, ctx=512), tune=False) as session:
        conversation = Conversation(session)
        assert conversation.say(QUESTION).finish_reason == "stop"
        second = conversation.say("And of Spain?")
        rendered, add_bos = prompt.render(conversation.messages[:-1], session.pair.target, session.interrupt.is_set)
        assert second.prompt == session.models.target.model.tokenize(rendered, add_bos)
