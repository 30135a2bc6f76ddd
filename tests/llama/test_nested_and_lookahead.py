"""Lookahead and nested drafters on models: the target's own text, up to the end of a context, and recurrent ones."""

import json

import pytest
import tiny
from driver import assert_refused, run
from engines import DRAFT, TARGET, open_session
from prompts import PROMPTS

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.weights.pass_costs import PassCosts

WAYS = {
    "lookahead": {},
    "model<ngram": {},
    "small>model": {"draft": TARGET, "draft_small": DRAFT},
    "ngram+lookahead": {},
}
"""In the third the target drafts for itself, and its draft model for that."""
REPEATING = "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2, 3]\nw = [1,"
FREE = Costs(Curve({1: 5e-4, 64: 6e-4}), Curve({1: 2e-5, 512: 2e-4}))


MODES = {
    "greedy": {},
    "auto": {"draft_tokens": "auto"},
    "match": {"temperature": 0.8, "accept": "match"},
    "a full context": {"ctx": 48},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafter", WAYS)
def test_the_text_is_that_of_the_target_alone(drafter, mode, monkeypatch):
    """auto: on a machine on which checking is nearly free, or else it would rightly draft nothing. Where a context
    ends, drafts shrink before it, and the answer ends where that of the target alone does.
    """
    k = 41 if "lookahead" in drafter else 5
    changes = {"max_tokens": 48, "lookahead": "7:4:7", "draft_tokens": k, **WAYS[drafter], **MODES[mode]}
    texts = PROMPTS[:1] if "ctx" in changes else (REPEATING, *PROMPTS[:2])
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("tiny")
    kinds = {"llama-draft": 0.08, "llama-small": 0.2, "mamba-draft": 0.05, "llama": 0.0, "mamba": 0.0, "lfm2": 0.0}
    for name, noise in kinds.items():
        tiny.write(found / f"{name}.gguf", name.partition("-")[0], noise=noise)
    return found


@pytest.mark.parametrize(("kind", "drafter"), [("mamba", "lookahead"), ("lfm2", "ngram+lookahead")])
def test_lookahead_needs_a_memory_that_can_branch(folder, kind, drafter):
    done = run("-m", folder / f"{kind}.gguf", "--drafter", drafter, "-n", 8, "--raw", "hello")
    assert_refused(done, 2, "lookahead", f"{kind}.gguf", "recurrent", "ngram")


def serves(folder, target, draft, small, drafter, k):
    """Whether the answer with such models is the target's own; what came of the drafts."""

    def answer(*args):
        common = ("-n", 60, "-t", 1, "--raw", "--json", "-m", folder / f"{target}.gguf")
        done = run(*common, *args, "hello there, hello there, hello")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    second = ("-mds", folder / f"{small}.gguf") if "small" in drafter else ()
    found = answer("-md", folder / f"{draft}.gguf", *second, "--drafter", drafter, "-k", k)
    assert found["tokens"] == answer("--drafter", "none")["tokens"]
    assert not [note for note in found["notes"] if "larger" not in note]
    return found["stats"]


@pytest.mark.parametrize("drafter", ["model<ngram", "ngram+model<ngram", "small>model", "lookahead+model"])
@pytest.mark.parametrize(("draft", "small"), [("mamba", "llama-small"), ("llama-draft", "mamba"), ("lfm2", "mamba")])
def test_recurrent_draft_models_serve(folder, drafter, draft, small):
    assert serves(folder, "llama", draft, small, drafter, 41 if "look" in drafter else 6)["drafted"] > 0


@pytest.mark.parametrize("small", ["mamba-draft", "llama-small"])
@pytest.mark.parametrize("drafter", ["model<ngram", "small>model"])
def test_a_recurrent_target_has_nested_drafts_too(folder, drafter, small):
    assert serves(folder, "mamba", "mamba-draft", small, drafter, 5)["accepted"] > 10
