"""Lookahead and nested drafters on models: the target's own text, up to the end of a context, and recurrent ones."""

from itertools import product

import pytest
from driver import assert_refused, run, told
from engines import DRAFT, TARGET, open_session
from prompts import PROMPTS

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.weights.pass_costs import PassCosts

WAYS = {
    "lookahead": {},
    "model<ngram": {},
    "small>model": {"draft": TARGET, "draft_small": DRAFT},
}
"""In the last the target drafts for itself, and its draft model for that."""
REPEATING = "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2, 3]\nw = [1,"
FREE = Costs(Curve({1: 5e-4, 64: 6e-4}), Curve({1: 2e-5, 512: 2e-4}))


MODES = {
    "greedy": {},
    "auto": {"draft_tokens": "auto"},
    "match": {"temperature": 0.8, "accept": "match"},
    "a full context": {"ctx": 48},
}


@pytest.mark.parametrize(
    ("drafter", "mode"),
    [
        pytest.param(drafter, mode, marks=[pytest.mark.slow] * (mode == "match" and drafter != "model<ngram"))
        for drafter, mode in product(WAYS, MODES)
    ],
)
def test_the_text_is_that_of_the_target_alone(drafter, mode, monkeypatch):
    """auto: on a machine on which checking is nearly free, or else it would rightly draft nothing. Where a context
    ends, drafts shrink before it, and the answer ends where that of the target alone does.
    """
    k = 19 if "lookahead" in drafter else 5
    changes = {"max_tokens": 48, "lookahead": "5:3:5", "draft_tokens": k, **WAYS[drafter], **MODES[mode]}
    texts = PROMPTS[:1] if "ctx" in changes else (REPEATING, PROMPTS[0])
    drafted = accepted = 0
    with open_session(min(96, changes.get("ctx", 97) - 1), drafter=drafter, **changes) as session:
        monkeypatch.setattr(session.costs, "of_pair", lambda text: FREE)
        monkeypatch.setattr(PassCosts, "verify", lambda self, text: FREE.verify)
        for seed, text in enumerate(texts):
            prompt = session.tokenize(text, raw=True)
            ways = session.settings, session.settings.alone()
            mine, own = (Metrics.of(session.events(prompt, seed, settings=way)) for way in ways)
            assert mine.tokens == own.tokens and mine.reason == own.reason and mine.notes == ()
            assert mine.reason == "context" or "ctx" not in changes
            drafted += mine.drafted
            accepted += mine.accepted
    assert drafted > 0 and accepted > {"greedy": 10, "auto": 0}.get(mode, -1)


@pytest.mark.parametrize(("kind", "drafter"), [("mamba", "lookahead"), ("lfm2", "ngram+lookahead")])
def test_lookahead_needs_a_memory_that_can_branch(load, kind, drafter):
    done = run("-m", load(kind).path, "--drafter", drafter, "-n", 8, "--raw", "hello")
    assert_refused(done, 2, "lookahead", f"{kind}-0.0.gguf", "recurrent", "ngram")


SERVED = [
    *[
        ("llama", draft, small, drafter)
        for draft, small in (("mamba", "llama"), ("llama", "mamba"), ("lfm2", "mamba"))
        for drafter in ("model<ngram", "small>model", "lookahead+model")
    ],
    *[("mamba", "mamba", small, drafter) for small in ("mamba", "llama") for drafter in ("model<ngram", "small>model")],
]


@pytest.mark.parametrize(("target", "draft", "small", "drafter"), SERVED)
def test_recurrent_models_serve_and_are_served(load, target, draft, small, drafter):
    def answer(*args):
        common = ("run", "-n", 60, "-t", 1, "--raw", "-m", load(target).path)
        return told(*common, *args, "hello there, hello there, hello")

    second = ("-mds", load(small, 0.2 if small == "llama" else 0.05).path) if "small" in drafter else ()
    k = 41 if "lookahead" in drafter else 5
    found = answer("-md", load(draft, 0.05).path, *second, "--drafter", drafter, "-k", k)
    assert found["tokens"] == answer("--drafter", "none")["tokens"]
    assert not [note for note in found["notes"] if "larger" not in note]
    assert found["stats"]["accepted"] > 10 if target == draft else found["stats"]["drafted"] > 0
