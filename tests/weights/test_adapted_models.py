"""Adapters at work: they change what a model says, drafts do not, and what is kept is kept by adapter and scale."""

import os
from contextlib import closing

import loras
import numpy as np
import pytest
from driver import DRAFT, TARGET
from engines import open_session
from fakes import drafts_of, tokens_of

from specdec_cli import SamplingParams
from specdec_cli.chat import saved_conversations
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.draft_length.cost_model import SharedLoad
from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.slots import Slots
from specdec_cli.llama.adapter import Adapter
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.measure.acceptance_traces import recording_of
from specdec_cli.settings.settings import Settings
from specdec_cli.weights import pass_costs as saved_costs
from specdec_cli.weights import tuning
from specdec_cli.weights.model_pair import check_pair, setup_of_pair

PROMPT = "def median(values):\n    return"


def row(path, *adapters):
    """The logits after a few tokens."""
    with (
        closing(Model(path, Placement(0), Interrupt(), adapters)) as model,
        closing(LlamaContext.open(model, 256, 4, 1, Interrupt())) as context,
    ):
        return context.decode([5, 9, 40, 77]).copy()


@pytest.mark.parametrize("kind", ["bundled", "llama", "qwen3", "lfm2", "mamba", "nemotron_h"])
def test_an_adapter_changes_the_logits(tmp_path, load, kind):
    path = TARGET if kind == "bundled" else load(kind).path
    adapted = ("ssm_in", "ssm_out") if kind in ("mamba", "nemotron_h") else loras.ADAPTED
    file, second = (loras.write(tmp_path / f"a{seed}.gguf", path, seed, adapted=adapted) for seed in (0, 1))
    plain, once, none = row(path), row(path, Adapter(file)), row(path, Adapter(file, 0.0))
    assert (none == plain).all() and np.abs(once - plain).max() > 0.1
    assert np.abs(row(path, Adapter(file, 2.0)) - once).max() > 0.1
    assert np.abs(row(path, Adapter(file), Adapter(second)) - once).max() > 0.1
    # Two halves of an adapter are the whole of it, but for rounding.
    halves = row(path, Adapter(file, 0.5), Adapter(file, 0.5))
    assert np.abs(halves - once).max() < 1e-2 * np.abs(once - plain).max()


def written(session):
    return list(session.events(session.tokenize(PROMPT, raw=True), 0))


COUPLED = pytest.param({"temperature": 0.9, "accept": "coupled"}, id="coupled", marks=pytest.mark.slow)


@pytest.mark.parametrize("sampling", [pytest.param({}, id="greedy"), COUPLED])
def test_the_text_is_that_of_the_adapted_target(adapter, of_draft, sampling):
    settings = {"lora": (str(adapter),), "draft_tokens": 4, "ctx": 256, "max_tokens": 48, **sampling}
    with open_session(**settings, drafter="none") as alone:
        own = Transcript.of(written(alone))
    with open_session(**{**settings, "lora": ()}, drafter="none") as plain:
        assert tokens_of(written(plain)) != list(own.tokens)
    for way in ({"drafter": "ngram", "draft": None}, {"lora_draft": (str(of_draft),)}, {"tree": 3}):
        with open_session(**settings, **way) as session:
            answer = written(session)
            prompt = session.tokenize(PROMPT, raw=True)
            divergence = session.divergence(prompt, own, Transcript.of(answer), 0, session.settings)
            assert divergence is None or not divergence.bug, str(divergence)
            assert drafts_of(answer), way


def test_an_adapter_of_the_draft_changes_drafts_and_no_text(of_draft):
    """At temperature 0 the texts are the same, and what is accepted is not."""
    texts, accepted = [], []
    for lora in ((), (str(of_draft),)):
        with open_session(draft_tokens=4, lora_draft=lora) as session:
            answer = session.generate(PROMPT, SamplingParams(max_tokens=48), raw=True)
            texts.append(answer.text)
            accepted.append(answer.metrics.accepted / answer.metrics.drafted)
    assert texts[0] == texts[1] and accepted[1] < accepted[0]


def test_slots_are_adapted(adapter):
    sampling = SamplingParams(max_tokens=24)
    with open_session(drafter="none", lora=(str(adapter),)) as alone:
        text = alone.generate(PROMPT, sampling, raw=True).text
    with (
        open_session(lora=(str(adapter),), draft_tokens=3) as session,
        closing(Slots(session.weights, 2, 256, SharedLoad(), Interrupt())) as slots,
    ):
        assert [slot.generate(PROMPT, sampling, raw=True).text for slot in slots.sessions] == [text] * 2


def test_what_is_kept_is_kept_by_adapter_and_scale(adapter, of_draft, tmp_path):
    other = loras.write(tmp_path / "other.gguf", TARGET, seed=1)

    def setup(**adapters):
        settings = Settings(str(TARGET), str(DRAFT), drafter="model", **adapters)
        return setup_of_pair(check_pair(settings), settings)

    assert setup() == setup(lora=(f"{adapter}:0",)) == "", "scale 0 is no adapter"
    ways = [(str(adapter),), (f"{adapter}:0.5",), (str(other),), (str(adapter), str(other))]
    setups = [*(setup(lora=way) for way in ways), setup(lora_draft=(str(of_draft),))]
    assert len({tuning.path_of(TARGET, DRAFT, each) for each in ["", *setups]}) == 6
    assert recording_of(TARGET, DRAFT, "greedy") and not recording_of(TARGET, DRAFT, "greedy", setups[0])
    before = other.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert setup(lora=(str(other),)) not in setups, "another file of the same name"


def test_costs_are_kept_apart(adapter, nothing_known):
    folder = saved_costs._COSTS.folder()
    for lora, known in (((), 1), ((str(adapter),), 2), ((str(adapter),), 2)):
        with open_session(lora=lora, drafter="ngram", draft=None, draft_tokens="auto") as session:
            session.generate(PROMPT, SamplingParams(max_tokens=8), raw=True)
        assert len(list(folder.glob("*.json"))) == known


def test_a_read_text_is_not_taken_over_by_another_adapter_or_scale(adapter):
    """What was read with an adapter is of no use without it."""
    ways = [(), (str(adapter),), (f"{adapter}:0.5",)]
    for kept_with in ways:
        with open_session(lora=kept_with, draft_tokens=3) as session:
            conversation = Conversation(session)
            answer = conversation.ask("Sort a list.")
            assert [*answer]
            conversation.keep(answer)
            saved_conversations.save(conversation, "mine")
        for read_with in ways:
            with open_session(lora=read_with, draft_tokens=3) as session:
                notes = saved_conversations.restore(Conversation(session), "mine")
                length = session.models.target.open_kv.length
            same = read_with == kept_with
            assert [note for note in notes if "target" in note and "adapters" in note] == notes
            assert (len(notes), length > 0) == ((0, True) if same else (1, False))
