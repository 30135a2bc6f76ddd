"""`/alone` proves why an answer differs, in any turn, as long as the cache that the answer began with is there."""

import pytest
import tiny
from exactness import spoilt
from serving import TEMPLATE

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.rules import RULES
from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.engine import one_session
from specdec_cli.llama.context import LlamaContext
from specdec_cli.settings.options import SamplingParams
from specdec_cli.settings.settings import Settings

_GAP = 0.6
"""Of the two best logits, below which the kernels that these tests plant round otherwise in a pass over several."""


@pytest.fixture
def kind():
    return "llama"


@pytest.fixture
def conversation(tmp_path, kind):
    target = tiny.write(tmp_path / "target.gguf", kind, chat_template=TEMPLATE)
    draft = tiny.write(tmp_path / "draft.gguf", kind, noise=0.1, chat_template=TEMPLATE)
    models = {"target": str(target), "draft": str(draft), "drafter": "model"}
    settings = Settings(**models, draft_tokens=3, max_tokens=24, ctx=2048, threads=1, accept="coupled")
    with one_session(settings, tune=False) as session:
        yield Conversation(session)


@pytest.fixture
def rounds(monkeypatch):
    """Kernels that round otherwise in passes over several tokens: they swap the two best logits if those are close."""
    honest = LlamaContext.decode

    def decode(self, tokens, all_rows=False, unread=0, meanwhile=None):
        rows = honest(self, tokens, all_rows, unread, meanwhile)
        if all_rows and len(tokens) > 1:
            rows = rows.copy()
            for row in rows:
                second, best = row.argsort()[-2:]
                if row[best] - row[second] < _GAP:
                    row[[best, second]] = row[[second, best]]
        return rows

    monkeypatch.setattr(LlamaContext, "decode", decode)


def ask(conversation, text):
    answer = conversation.ask(text)
    for _ in answer:
        pass
    conversation.keep(answer)
    return answer


def alone(answer):
    """How an answer compares with the target's own, which is written now."""
    own = answer.alone()
    for _ in own:
        pass
    assert not own.result.metrics.drafted
    return answer.compared_with(own.result), own.result


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_an_equal_answer_is_called_equal_in_each_turn(conversation):
    """By the settings that it had, whatever they are now."""
    for turn in range(3):
        conversation.set_options(SamplingParams(temperature=0.4 * turn, seed=3))
        answer = ask(conversation, f"Question {turn}?")
        conversation.set_options(SamplingParams(temperature=0.0, max_tokens=5))
        for _ in range(2):
            found, own = alone(answer)
            assert found.identical and own.tokens == answer.result.tokens and found.speedup is None
    conversation.system = "Be brief."
    assert alone(answer)[0].identical


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounding_is_proved_also_where_a_cache_was_reused(conversation, rounds, temperature):
    proved = set()
    for turn in range(12):
        conversation.set_options(SamplingParams(temperature=temperature, seed=turn))
        answer = ask(conversation, f"Question {turn}?")
        found, own = alone(answer)
        assert own.cached_tokens == answer.result.cached_tokens and bool(own.cached_tokens) == bool(turn)
        if not found.identical:
            assert found.divergence.kind == "rounding" and found.divergence.width > 1, found.divergence
            assert found.differs_at == found.divergence.position
            proved.add(bool(turn))
            found.require_own()
    assert True in proved


def test_a_bug_is_found_also_where_a_cache_was_reused(conversation, monkeypatch):
    ask(conversation, "One?")
    monkeypatch.setitem(RULES, "coupled", spoilt("coupled"))
    answer = ask(conversation, "Two?")
    found, _ = alone(answer)
    assert answer.result.cached_tokens and not found.identical and found.divergence.bug
    with pytest.raises(SpecdecError, match="not the target's own: computed again"):
        found.require_own()


def test_a_cache_that_holds_a_wrong_token_is_found_also_where_a_cache_was_reused(conversation, monkeypatch):
    ask(conversation, "One?")
    honest = LlamaContext.end_draft

    def end_draft(self, length):
        """Read another token in place of the last one."""
        honest(self, length)
        if self is conversation.session.models.target.kv and length % 5 == 0:
            other = (self.tokens[-1] + 1) % 200
            self.rewind(length - 1)
            self.decode([other])

    monkeypatch.setattr(LlamaContext, "end_draft", end_draft)
    answer = ask(conversation, "Two?")
    monkeypatch.setattr(LlamaContext, "end_draft", honest)
    found, _ = alone(answer)
    assert not found.identical and found.divergence.bug


def test_nothing_is_proved_once_something_else_was_written(conversation, rounds):
    """The cache may then hold the same tokens, but as other passes wrote them."""
    session = conversation.session
    for turn in range(12):
        answer = ask(conversation, f"Question {turn}?")
        found, _ = alone(answer)
        if turn and found.divergence:
            break
    session.generate("Something else.")
    for _ in session.start(answer.result.prompt):
        pass
    found, own = alone(answer)
    assert own.cached_tokens == answer.result.cached_tokens, "the tokens are there again"
    assert (found.identical, found.divergence) == (False, None) and found.differs_at is not None
    found.require_own()


@pytest.mark.parametrize("kind", ["mamba"])
def test_a_recurrent_model_can_return_to_an_empty_cache_only(conversation):
    ask(conversation, "One?")
    answer = ask(conversation, "Two?")
    found, own = alone(answer)
    assert found.identical and own.cached_tokens == 0 and answer.result.cached_tokens
    own.metrics.tokens[-1] += 1
    found = answer.compared_with(own)
    assert found.differs_at == len(own.tokens) - 1 and found.divergence is None


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_an_interrupted_answer_is_compared_as_far_as_it_goes(conversation):
    ask(conversation, "One?")
    answer = conversation.ask("Two?")
    for event in answer:
        if getattr(event, "index", 0) == 3:
            conversation.session.interrupt.set()
    conversation.session.interrupt.clear()
    conversation.keep(answer)
    assert not answer.result.complete and answer.result.tokens
    found, own = alone(answer)
    assert found.identical and own.tokens == answer.result.tokens
