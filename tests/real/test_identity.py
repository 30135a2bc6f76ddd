"""Answers of real models are the target's own: every difference is proved to be rounding, and mistakes are not. With
`--bitwise` there is none.
"""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
from exactness import spoilt

from specdec_cli.decoding import rules
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.types import NO_DRAFT
from specdec_cli.engine.engine import one_session
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.settings.settings import Settings

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
    with one_session(settings) as session:
        texts = [session.tokenize(text, raw=True) for text in prompts]
        session.open(max(map(len, texts)), [replace(settings, **way) for way in ways])
        yield session, texts


def transcript(session, prompt, seed, settings):
    events = list(session.events(prompt, seed, settings=settings))
    assert events[-1].notes == ()
    return Transcript.of(events, tuple(session.models.target.open_kv.thread_log))


def compared(session, prompts, ways):
    """How often each way's answer was the target's own, and how often it was not, by rounding alone."""
    found = Counter()
    for seed, prompt in enumerate(prompts, 1):
        base = replace(session.settings, **{name: value for name, value in ways[0].items() if name == "accept"})
        alone = transcript(session, prompt, seed, base.alone())
        for way in ways:
            settings = replace(session.settings, **way)
            answer = transcript(session, prompt, seed, settings)
            difference = session.divergence(prompt, alone, answer, seed, settings)
            assert difference is None or not difference.bug, f"{way}: {difference}"
            found["identical" if difference is None else "rounding"] += 1
    return found


def every_way(drafters, lengths):
    return [{"drafter": drafter, "draft_tokens": k} for drafter in drafters for k in lengths]


GREEDY = [
    *every_way(["model", "ngram"], LENGTHS),
    *every_way(["ngram+model", "model<ngram"], (4, "auto")),
    {"drafter": "lookahead", "draft_tokens": 16},
    {"drafter": "model", "draft_tokens": 6, "tree": 3},
]
REAL_PAIR = [*every_way(["model", "ngram"], LENGTHS), *every_way(["ngram+model"], (4, 8, "auto"))]
SAMPLED = every_way(["model", "ngram"], (*LENGTHS, "auto"))
TRANSLATED = every_way(["model"], (2, 4, "auto"))
SAMPLED_PAIR = every_way(["model", "ngram+model"], (2, "auto"))


@pytest.mark.parametrize(
    ("target", "draft", "prompts", "ways", "rule", "threads"),
    [
        ("smol", "smol", PROMPTS, GREEDY, None, 2),
        ("qwen", "qwen_small", PROMPTS[:1], REAL_PAIR, None, 2),
        ("qwen_small", "smol", PROMPTS, TRANSLATED, None, 1),
        ("qwen_small", "smol", PROMPTS, TRANSLATED, "coupled", 1),
        ("smol", "smol", PROMPTS, SAMPLED, "coupled", 1),
        ("smol", "smol", PROMPTS, SAMPLED, "match", 1),
        ("qwen", "qwen_small", PROMPTS[:1], SAMPLED_PAIR, "coupled", 1),
    ],
)
def test_answers_are_the_targets_own(target, draft, prompts, ways, rule, threads, request, capsys):
    """Greedily, or with a seed at a temperature. SmolLM drafts for itself, so that all is accepted that rounding lets
    stand; and for Qwen, with another tokenizer.
    """
    models = [request.getfixturevalue(name) for name in (target, draft)]
    ways = [{**way, **({"accept": rule} if rule else {})} for way in ways]
    with opened(*models, prompts, ways, threads, **({"temperature": 0.8} if rule else {})) as (session, texts):
        found = compared(session, texts, ways)
    with capsys.disabled():
        print(f"\n  {target}, {rule or 'greedy'}: {dict(found)}", end="")
    assert found["identical"] > found["rounding"] or target.startswith("qwen")


LONG = PROMPTS[1] * 12
"""More than 256 tokens: beyond, two threads read a single token in another way than several."""
WIDE = [*every_way(["model", "ngram"], (1, 4, 8, "auto")), {"drafter": "ngram+model", "draft_tokens": "auto"}]
FEW = [{"drafter": "model", "draft_tokens": 8}, {"drafter": "ngram", "draft_tokens": "auto"}]
RULES = [{**way, "accept": rule} for rule in ("coupled", "match") for way in every_way(["model"], (4, "auto"))]


@pytest.mark.parametrize(
    ("target", "draft", "prompts", "ways", "threads", "temperature"),
    [
        *(("smol", "smol", (PROMPTS[0], LONG), WIDE, threads, 0) for threads in (1, 2)),
        *(("smol", "smol", (LONG * 3,), FEW, threads, 0) for threads in (1, 2)),
        ("smol", "smol", PROMPTS[:1], RULES, 2, 0.8),
        # Its passes agree up to three tokens only: longer drafts are read in pieces.
        ("qwen_small", None, (LONG,), every_way(["ngram"], (2, 8, "auto")), 1, 0),
        ("qwen", "qwen_small", PROMPTS[:1], every_way(["model"], (2, 8, "auto")), 1, 0),
    ],
)
def test_with_bitwise_they_are_identical_without_exception(target, draft, prompts, ways, threads, temperature, request):
    models = [request.getfixturevalue(name) if name else None for name in (target, draft)]
    options = {"temperature": temperature, **({"accept": "coupled"} if temperature else {})}
    with opened(*models, prompts, ways, threads, bitwise=True, **options) as (session, texts):
        for seed, prompt in enumerate(texts):
            for way in ways:
                settings = replace(session.settings, **way)
                alone, answer = (transcript(session, prompt, seed, each) for each in (settings.alone(), settings))
                assert answer.tokens == alone.tokens, (way, threads, str(session.costs.agreement))
        assert session.costs.agreement.widest > session.costs.agreement.reference


# Negative controls: each mistake must come out as one, on real models too, whatever they round.


def mistaken(session, prompt, monkeypatch, spoil, repeats=False):
    """An answer that a mistake has spoilt, explained; `repeats`: the mistake is also made when it is computed again."""
    alone = transcript(session, prompt, 0, session.settings.alone())
    with monkeypatch.context() as patched:
        spoil(patched)
        answer = transcript(session, prompt, 0, session.settings)
        if repeats:
            return session.divergence(prompt, alone, answer, 0, session.settings)
    return session.divergence(prompt, alone, answer, 0, session.settings)


def keeps_rejected(patched, keep):
    """After each draft, `keep` is called with the target, the first rejected tokens and the verdict. It returns what to
    read in the place of the next pending token, if anything.
    """
    verify, commit = LlamaTarget.verify, LlamaTarget.commit
    state = {"instead": None, "draft": NO_DRAFT}

    def verifying(self, pending, draft):
        instead, state["instead"], state["draft"] = state["instead"], None, draft
        return verify(self, pending if instead is None else instead, draft)

    def committing(self, verdict, unread=()):
        commit(self, verdict, unread)
        rejected, state["draft"] = state["draft"].tokens[len(verdict.path) :], NO_DRAFT
        if rejected:
            state["instead"] = keep(self, rejected[:1], verdict)

    patched.setattr(LlamaTarget, "verify", verifying)
    patched.setattr(LlamaTarget, "commit", committing)


def keeps_for_pending(patched):
    """The cache keeps a rejected token where the target's own token belongs."""
    keeps_rejected(patched, lambda target, rejected, verdict: rejected[0])


def keeps_for_accepted(patched):
    """The cache keeps a rejected token in the place of the last accepted one."""

    def keep(target, rejected, verdict):
        if verdict.path:
            target._context.rewind(target._context.length - 1)
            target._context.decode(rejected)

    keeps_rejected(patched, keep)


def second_best(patched):
    patched.setitem(rules.RULES, "rejection", spoilt("match"))


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
    with opened(request.getfixturevalue(name), None, (text,), [{}], draft_tokens=4) as (session, prompts):
        assert says in mistaken(session, prompts[0], monkeypatch, spoil, repeats).bug
