"""Drafters as a package may bring them: right ones, and ones with every fault that there is a word for."""

import asyncio
import itertools
import random
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest import mock

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.errors import Interrupted, UsageError
from specdec_cli.decoding.types import NO_DRAFT, Draft

NAME = "faulty"


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


class Strange(BaseException):
    pass


def raising(error):
    def fail(*_):
        raise error

    return fail


def set_to(target, name, value):
    """For lambdas."""
    setattr(target, name, value)


RAISED = {
    **{type(error).__name__: error for error in (KeyError("x"), RecursionError(), MemoryError(), OSError(28, "full"))},
    **{kind.__name__: kind() for kind in (SystemExit, GeneratorExit, StopIteration, Speechless, Strange, Interrupted)},
    "exit code 0": SystemExit(0),
    "cancelled": asyncio.CancelledError(),
    "usage": UsageError("no", "no"),
    "escapes": ValueError("\x1b]52;c;eA==\x07\x9b2J\u202e\u2028"),
    "half a surrogate pair": ValueError("\ud800"),
    "long": ValueError("x" * 10**6),
}

ODD = (
    *(None, True, 0, 5, -1, 10**9, 2**64, 10**5000, 1.5, -1.0, 1e300, float("nan"), np.int64(1), np.ones((2, 2))),
    *("", "x", "none", b"x", "\ud800", "\x1b]52;c;eA==\x07\u202e", "x" * 10**5, [], (None,) * 4, ((1,),)),
    *(object(), object, itertools.repeat(1)),
)
"""Values of any kind, for whatever a drafter returns or is."""

RETURNED = {
    "the draft": lambda draft, odd: odd,
    "its tokens": lambda draft, odd: replace(draft, tokens=odd),
    "a token": lambda draft, odd: replace(draft, tokens=(*draft.tokens[:-1], odd)),
    "its source": lambda draft, odd: replace(draft, source=odd),
    "its tree": lambda draft, odd: replace(draft, parents=odd),
    "q": lambda draft, odd: replace(draft, q=odd),
    "each q": lambda draft, odd: replace(draft, q=(odd,) * len(draft.tokens)),
    "probabilities": lambda draft, odd: replace(draft, q=(Categorical(None, odd),) * len(draft.tokens)),
    "ids": lambda draft, odd: replace(draft, q=(Categorical(odd, np.ones(1)),) * len(draft.tokens)),
}

TOKENS = {
    "numpy": lambda tokens: tuple(np.array(tokens, np.int64)),
    "an array": lambda tokens: np.array(tokens, np.int32),
    "a generator": iter,
    "booleans": lambda tokens: (True, False)[: len(tokens)],
    "beyond": lambda tokens: (*tokens[:-1], 10**6),
    "beyond 32 bits": lambda tokens: (2**32 + tokens[0],),
    "too many": lambda tokens: tokens * 50,
    "wrong": lambda tokens: tuple(token + 1 for token in tokens),
}

DRAFTS = {
    "a look-alike": lambda draft: SimpleNamespace(tokens=draft.tokens, q=None, parents=None, row_observer=None),
    "from another": lambda draft: replace(draft, source="model"),
    **{
        f"tree {parents!r:.20}": lambda draft, parents=parents: replace(draft, parents=parents)
        for parents in ((), (0,), (-1,), (-1, -1, -1, -1), (-1, 2, 1, 0), (-2, 0, 1, 2), (-1.0, 0, 1, 2))
    },
    "tree of numpy": lambda draft: replace(draft, parents=np.arange(-1, len(draft.tokens) - 1)),
}

N = 4096  # the bundled pair's vocabulary is smaller


def one_hot(token, dtype=np.float32):
    probs = np.zeros(N, dtype)
    probs[token] = 1
    return probs


Q = {
    "one-hot": lambda token: Categorical(None, one_hot(token)),
    "sparse": lambda token: Categorical(np.array([token]), np.ones(1)),
    "of unsigned ids": lambda token: Categorical(np.array([token], np.uint16), np.ones(1)),
    "lists": lambda token: Categorical([token], [1.0]),
    "whole numbers": lambda token: Categorical(None, one_hot(token, np.int64)),
    "empty": lambda token: Categorical(np.array([], np.int64), np.array([])),
    "NaN": lambda token: Categorical(None, np.full(N, np.nan)),
    "too large": lambda token: Categorical(None, np.full(N, 1e308)),
    "too little": lambda token: Categorical(None, one_hot(token) / 2),
    "negative": lambda token: Categorical(None, 2 * one_hot(token) - one_hot(token + 1)),
    "elsewhere": lambda token: Categorical(None, one_hot(token + 1)),
    "out of order": lambda token: Categorical(np.array([token, 0]), np.array([0.5, 0.5])),
    "twice": lambda token: Categorical(np.array([token, token]), np.array([0.5, 0.5])),
    "negative ids": lambda token: Categorical(np.array([-1, token]), np.array([0.5, 0.5])),
    "ids of floats": lambda token: Categorical(np.array([float(token)]), np.ones(1)),
    "more ids": lambda token: Categorical(np.array([token, token + 1]), np.ones(1)),
}

WRITES = {
    "append": lambda text: text.append(1),
    "the last": lambda text: text.__setitem__(-1, 1),
    "+=": lambda text: text.__iadd__([1, 2]),
    "delete": lambda text: text.__delitem__(0),
}

MADE_OF = {  # what is done to a DrafterContext
    "follow": lambda context: context.sampler.follow([1, 2, 3]),
    "greedy": lambda context: set_to(context.sampler, "greedy", False),
    "settings": lambda context: set_to(context.sampler, "settings", None),
    "argmax": lambda context: set_to(context.sampler, "argmax", lambda *_: 1),
    "text": lambda context: context.sampler._context.append(1),
    "model": lambda context: context.model.decode([1]),
    **{f"reads {n}": lambda context, n=n: context.model.decode([1] * n, all_rows=True) for n in (0, 50, 600)},
    **{f"token {n}": lambda context, n=n: context.model.decode([n]) for n in (-1, 1.5, None, 10**6, 2**40)},
    **{f"node {n}": lambda context, n=n: context.model.grow([1, 2], [-1, n]) for n in (-5, 1, 9, 0.5)},
    "nodes": lambda context: context.model.grow([1] * 60, [-1] * 60),
    "tree": lambda context: [context.model.grow([1], [-1]), context.model.decode([1])],
    "path": lambda context: context.model.keep([-3, 5]),
    "back": lambda context: context.model.rewind(-5),
    "length": lambda context: set_to(context.model, "length", -5),
    "close": lambda context: context.model.close(),
    "frozen": lambda context: set_to(context, "model", None),
    "rng": lambda context: context.rng.random(100),
}

POLICY = {
    "why": lambda policy: set_to(policy, "why", object()),
    "limit": lambda policy: set_to(policy, "limit", lambda room: "all"),
    "observe": lambda policy: set_to(policy, "observe", None),
    "nan": lambda policy: policy.should_draft(0, float("nan")),
    "none": lambda policy: policy.should_draft(None, None),
    "far": lambda policy: policy.should_read(10**9),
    "chances": lambda policy: policy.choose([2.0, -1.0, float("inf")]),
    "hindsight": lambda policy: policy.observe_counterfactual(float("inf"), -5.0),
}

ROWS = {
    "written": lambda rows: [rows[i].fill(-1e9) for i in range(2)],
    "scaled": lambda rows: [np.multiply(rows[i], -1, out=rows[i]) for i in range(2)],
    "unlocked": lambda rows: [set_to(rows[0].flags, "writeable", True), rows[0].fill(0)],
    "the base": lambda rows: rows[0].base.fill(0),
    "all": lambda rows: list(zip(range(10**6), rows, strict=False)),
    "out of range": lambda rows: rows[10**6],
    "assigned": lambda rows: rows.__setitem__(0, 1),
}

ATTRIBUTES = ("name", "needs_model", "needs", "helps", "token_s", "form", "nested_only", "create", "guess")


@dataclass
class Fault:
    """What a drafter does wrong, in which of its methods, from which call on. act: with what the method is given; or
    instead of what it returns.
    """

    about: str
    where: str
    act: object
    instead: bool = False
    after: int = 0


def fault(chance: random.Random) -> Fault:
    """One word of the grammar."""
    words = {"tokens": TOKENS, "draft": DRAFTS, "q": Q, "made": MADE_OF, "policy": POLICY, "rows": ROWS}
    kind = chance.choice((*words, "raised", "returned", "started", "written", "class"))
    after, number = chance.choice((0, 0, 1, 3)), chance.randrange(len(ODD))
    odd, drafts = ODD[number], "guess" if chance.random() < 0.2 else "propose"
    if kind == "raised":
        where = chance.choice(("load", "create", "start", "propose", "propose", "observe", "rows", "guess", "forget"))
        name = chance.choice([*RAISED])
        return Fault(f"raises {name} in {where}", where, raising(RAISED[name]), after=after)
    if kind == "class":
        name = chance.choice(ATTRIBUTES)
        return Fault(f"its {name} is odd value {number}", "load", lambda made: set_to(made, name, odd))
    if kind == "started":
        return Fault(f"start returns odd value {number}", "start", lambda _: odd, instead=True)
    if kind == "returned":
        name = chance.choice([*RETURNED])
        act = RETURNED[name]
        return Fault(f"{name} is odd value {number} in {drafts}", drafts, lambda draft: act(draft, odd), True, after)
    if kind == "written":
        where, place = chance.choice((("start", 0), ("propose", 0), ("guess", 0), ("guess", 1)))
        name = chance.choice([*WRITES])
        return Fault(f"{name} in {where}", where, lambda *given: WRITES[name](given[place]), after=after)
    name = chance.choice([*words[kind]])
    act = words[kind][name]
    acts = {
        "tokens": lambda draft: replace(draft, tokens=act(draft.tokens)),
        "q": lambda draft: replace(draft, q=tuple(map(act, draft.tokens))),
        "policy": lambda *given: act(given[-1]),
    }
    where = {"made": "create", "rows": "rows", "policy": "propose"}.get(kind, drafts)
    return Fault(f"{kind}: {name} in {where}", where, acts.get(kind, act), kind in ("tokens", "draft", "q"), after)


def drafter(own: list[int], prompt: int, fault: Fault, needs_model: bool = False) -> type:
    """A drafter that knows the target's own answer to a prompt of so many tokens, and so drafts right, but for its
    fault; what it has been shown it keeps, and looks at again.
    """
    calls: dict[str, int] = {}

    def at(where, *given):
        """Whether the fault replaces what is returned."""
        calls[where] = calls.get(where, -1) + 1
        if fault.where != where or calls[where] < fault.after:
            return False
        if not fault.instead:
            fault.act(*given)
        return fault.instead

    class Faulty:
        name = NAME
        needs = helps = "nothing"
        token_s = 1e-6

        @classmethod
        def create(cls, context):
            at("create", context)
            made = cls()
            made.seen = []
            return made

        def start(self, prompt):
            return fault.act(prompt) if at("start", prompt) else 0

        def propose(self, context, budget, policy):
            for rows in self.seen:
                list(zip(range(20), rows, strict=False))
            return self._draft("propose", len(context), budget, context, policy)

        def guess(self, context, ahead, budget):
            return self._draft("guess", len(context) + len(ahead), budget, context, ahead)

        def _draft(self, where, length, budget, *given):
            tokens = tuple(own[length - prompt :][: min(budget, 4)])
            draft = Draft(tokens, None, self.name, None, self._rows if fault.where == "rows" else None)
            instead = at(where, *given)
            return fault.act(draft) if instead and tokens else draft if tokens else NO_DRAFT

        def _rows(self, rows):
            if fault.after:
                self.seen.append(rows)
            at("rows", rows)

        def observe(self, step):
            at("observe", step)

        def forget(self, length):
            at("forget", length)

    Faulty.needs_model = needs_model
    at("load", Faulty)
    return Faulty


@contextmanager
def installed(load):
    """While entered, a package brings the drafter that `load` returns."""
    entry = SimpleNamespace(name=NAME, load=load, dist=None, module="some_package")
    drafters.spec.cache_clear()
    with mock.patch.object(drafters, "_foreign", lambda: {NAME: entry}):
        yield
    drafters.spec.cache_clear()
