"""Answers of real models are the target's own: every difference is proved to be rounding, and mistakes are not."""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from specdec_cli.decoding import rules
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.types import NO_DRAFT
from specdec_cli.engine import proof
from specdec_cli.engine.config import Settings
from specdec_cli.engine.engine import Engine
from specdec_cli.llama.target import LlamaTarget

PROMPTS = (
    'def is_prime(n: int) -> bool:\n    """Return True if n is a prime number."""\n',
    "def word_counts(lines):\n    counts = {}\n    for line in lines:\n        for word in line.split():\n",
)
LENGTHS = (1, 2, 3, 4, 8)
TOKENS = 32


@contextmanager
def opened(target, draft, prompts, ways, threads=1, **changes):
    settings = Settings(str(target), str(draft) if draft else None, max_tokens=TOKENS, threads=threads, **changes)
    if not draft:
        settings = replace(settings, drafter="ngram")
    with Engine(settings) as engine:
        texts = [engine.tokenize(text, raw=True) for text in prompts]
        engine.open(max(map(len, texts)), [replace(settings, **way) for way in ways])
        yield engine, texts


def transcript(engine, prompt, seed, settings):
    events = list(engine.events(prompt, seed, settings=settings))
    assert events[-1].notes == ()
    return Transcript.of(events, tuple(engine.models.target.opened.thread_log))


def compared(engine, prompts, ways):
    """How often each way's answer was the target's own, and how often it was not, by rounding alone."""
    found = Counter()
    for seed, prompt in enumerate(prompts, 1):
        base = replace(engine.settings, **{name: value for name, value in ways[0].items() if name == "accept"})
        own = transcript(engine, prompt, seed, base.alone())
        for way in ways:
            settings = replace(engine.settings, **way)
            mine = transcript(engine, prompt, seed, settings)
            difference = proof.divergence(engine, prompt, own, mine, seed, settings)
            assert difference is None or not difference.bug, f"{way}: {difference}"
            found["identical" if difference is None else "rounding"] += 1
    return found


def every_way(drafters, lengths):
    return [{"drafter": drafter, "draft_tokens": k} for drafter in drafters for k in lengths]


def test_greedy_answers_of_smollm(smol, capsys):
    """The model drafts for itself: all is accepted that rounding lets stand."""
    ways = [*every_way(["model", "ngram"], LENGTHS), *every_way(["ngram+model", "model<ngram"], (4, "auto"))]
    ways += [{"drafter": "lookahead", "draft_tokens": 16}, {"drafter": "model", "draft_tokens": 6, "tree": 3}]
    with opened(smol, smol, PROMPTS, ways, 2) as (engine, prompts):
        found = compared(engine, prompts, ways)
    with capsys.disabled():
        print(f"\n  SmolLM2, greedy: {dict(found)}", end="")
    assert found["identical"] > found["rounding"]


def test_greedy_answers_of_the_real_pair(qwen, qwen_small, capsys):
    ways = [*every_way(["model", "ngram"], LENGTHS), *every_way(["ngram+model"], (4, 8, "auto"))]
    with opened(qwen, qwen_small, PROMPTS[:1], ways, 2) as (engine, prompts):
        found = compared(engine, prompts, ways)
    with capsys.disabled():
        print(f"\n  Qwen pair, greedy: {dict(found)}", end="")


@pytest.mark.parametrize("rule", ["coupled", "match"])
def test_sampled_answers_with_a_seed(smol, rule, capsys):
    ways = [{**way, "accept": rule} for way in every_way(["model", "ngram"], (*LENGTHS, "auto"))]
    with opened(smol, smol, PROMPTS, ways, temp=0.8) as (engine, prompts):
        found = compared(engine, prompts, ways)
    with capsys.disabled():
        print(f"\n  SmolLM2, 0.8, {rule}: {dict(found)}", end="")
    assert found["identical"] > found["rounding"]


def test_sampled_answers_of_the_real_pair(qwen, qwen_small):
    ways = [{**way, "accept": "coupled"} for way in every_way(["model", "ngram+model"], (2, "auto"))]
    with opened(qwen, qwen_small, PROMPTS[:1], ways, temp=0.8) as (engine, prompts):
        compared(engine, prompts, ways)


# Negative controls: each mistake must come out as one, on real models too, whatever they round.


def mistaken(engine, prompt, monkeypatch, spoil, repeats=False):
    """An answer that a mistake has spoilt, explained; `repeats`: the mistake is also made when it is computed again."""
    own = transcript(engine, prompt, 0, engine.settings.alone())
    with monkeypatch.context() as patched:
        spoil(patched)
        mine = transcript(engine, prompt, 0, engine.settings)
        if repeats:
            return proof.divergence(engine, prompt, own, mine, 0, engine.settings)
    return proof.divergence(engine, prompt, own, mine, 0, engine.settings)


def keeps_for_pending(patched):
    """The cache keeps a rejected token where the target's own token belongs."""
    verify, commit = LlamaTarget.verify, LlamaTarget.commit
    state = {"kept": None, "draft": NO_DRAFT}

    def verifying(self, pending, draft):
        kept, state["kept"], state["draft"] = state["kept"], None, draft
        return verify(self, pending if kept is None else kept, draft)

    def committing(self, verdict):
        commit(self, verdict)
        rejected = state["draft"].tokens[len(verdict.path) :]
        state["kept"] = rejected[0] if rejected else None

    patched.setattr(LlamaTarget, "verify", verifying)
    patched.setattr(LlamaTarget, "commit", committing)


def keeps_for_accepted(patched):
    """The cache keeps a rejected token in the place of the last accepted one."""
    verify, commit = LlamaTarget.verify, LlamaTarget.commit
    state = {"draft": NO_DRAFT}

    def verifying(self, pending, draft):
        state["draft"] = draft
        return verify(self, pending, draft)

    def committing(self, verdict):
        commit(self, verdict)
        rejected, state["draft"] = state["draft"].tokens[len(verdict.path) :], NO_DRAFT
        if rejected and verdict.path:
            self._context.rewind(self._context.length - 1)
            self._context.decode(rejected[:1])

    patched.setattr(LlamaTarget, "verify", verifying)
    patched.setattr(LlamaTarget, "commit", committing)


def second_best(patched):
    """The rule takes the second best token after a draft."""

    def rule(draft, logits, sampler, rng):
        verdict = rules.RULES["match"](draft, logits, sampler, rng)
        if not draft.tokens:
            return verdict
        return replace(verdict, token=int(logits[verdict.accepted].argsort()[-2]))

    patched.setitem(rules.RULES, "rejection", rule)


@pytest.mark.parametrize("name", ["smol", "qwen_small"])
@pytest.mark.parametrize(
    ("spoil", "repeats", "says"),
    [
        (keeps_for_pending, False, "computed again"),
        (second_best, False, "computed again"),
        (keeps_for_accepted, True, "depends on rejected tokens"),
    ],
)
def test_a_mistake_is_a_bug(name, spoil, repeats, says, monkeypatch, request):
    text = PROMPTS[1] * 2
    with opened(request.getfixturevalue(name), None, (text,), [{}], draft_tokens=4) as (engine, prompts):
        assert says in mistaken(engine, prompts[0], monkeypatch, spoil, repeats).bug
