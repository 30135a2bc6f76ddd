"""A scripted model: logits from tables, a cache that checks how it is used. No llama.cpp."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding.loop import Ending, generate
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.rules import RULES, sampler_of
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import NO_DRAFT, Draft, Event, LengthPolicy, Logits, Step, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.none import NoDrafter

GREEDY = SamplingOptions()


class Table:
    """Random logits that depend on the last `order` tokens."""

    def __init__(self, n_vocab: int, seed: int, order: int = 2, scale: float = 2.0) -> None:
        self.n_vocab, self.seed, self.order, self.scale = n_vocab, seed, order, scale
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def row(self, context: Sequence[int]) -> np.ndarray:
        key = tuple(context[-self.order :])
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._made(key)
        return row

    def _made(self, key: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, zlib.crc32(repr(key).encode())])
        return (rng.standard_normal(self.n_vocab) * self.scale).astype(np.float32)

    def mixed(self, other: Table, share: float) -> Mixed:
        return Mixed(self, other, share)


class Mixed(Table):
    """A draft that resembles its target: logits between two tables."""

    def __init__(self, target: Table, noise: Table, share: float) -> None:
        super().__init__(target.n_vocab, 0, max(target.order, noise.order))
        self._target, self._noise, self._share = target, noise, share

    def _made(self, key: tuple[int, ...]) -> np.ndarray:
        return self._target.row(key) * (1 - self._share) + self._noise.row(key) * self._share


class Counting:
    """Logits that continue every context by counting up: token t is followed by t + 1."""

    def __init__(self, n_vocab: int = 1000) -> None:
        self.n_vocab = n_vocab

    def row(self, context: Sequence[int]) -> np.ndarray:
        row = np.zeros(self.n_vocab, np.float32)
        row[(context[-1] + 1) % self.n_vocab] = 10
        return row


class Recurring(Counting):
    """Logits that say one phrase of so many tokens again and again."""

    def __init__(self, length: int) -> None:
        super().__init__(100)
        self._length = length

    def row(self, context: Sequence[int]) -> np.ndarray:
        return super().row([9 + len(context) % self._length])


class FakeTarget:
    """A `Target` over a table; `passes` records how many rows each forward pass was asked for. overlaps: its passes
    leave time for something else.
    """

    max_draft = 64

    def __init__(
        self, table: Table | Counting, n_ctx: int = 4096, max_branches: int = 64, overlaps: bool = True
    ) -> None:
        self.n_ctx, self.n_vocab, self.max_branches = n_ctx, table.n_vocab, max_branches
        self.reused, self._overlaps = 0, overlaps
        self._table = table
        self._cache: list[int] = []
        self.passes: list[int] = []

    @property
    def length(self) -> int:
        return len(self._cache)

    def prefill(self, prompt: Sequence[int]) -> Logits:
        self._cache = list(prompt)
        return self._table.row(self._cache)[None]

    def verify(self, pending: int, draft: Draft) -> Logits:
        self._cache.append(pending)
        self._draft = draft
        texts = [self._cache]
        for i, token in enumerate(draft.tokens):
            parent = i - 1 if draft.parents is None else draft.parents[i]
            texts.append([*texts[parent + 1], token])
        assert max(map(len, texts)) <= self.n_ctx
        self.passes.append(len(texts))
        if self._overlaps and draft.meanwhile:
            draft.meanwhile()
        return np.stack([self._table.row(text) for text in texts])

    def commit(self, verdict: Verdict, unread: Sequence[int] = ()) -> None:
        self._cache += [*(self._draft.tokens[node] for node in verdict.path), *unread]


class FakeDraftModel:
    """A `DraftModel` over a table. read: the whole text that each token was ever read in. passes: their sizes."""

    rewinds = True

    def __init__(self, table: Table | Counting, n_ctx: int = 4096, max_rows: int = 32) -> None:
        self.n_ctx, self.n_vocab, self.max_rows, self.max_branches = n_ctx, table.n_vocab, max_rows, max_rows
        self._table = table
        self._cache: list[int] = []
        self._tree: list[list[int]] = []
        self.read: list[tuple[int, ...]] = []
        self.passes: list[int] = []

    @property
    def length(self) -> int:
        return len(self._cache)

    def unread(self, text: Sequence[int]) -> int:
        return len(text)

    def begin(self, text: Sequence[int]) -> int:
        self.rewind(0)
        return 0

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        if len(self._cache) + len(news) + more > self.n_ctx:
            raise ValueError(f"its context of {self.n_ctx} tokens is full")
        return news

    def decode(
        self,
        tokens: Sequence[int],
        all_rows: bool = False,
        unread: int = 0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Logits:
        assert tokens, "an empty decode"
        assert not self._tree, "a tree is ended before the text goes on"
        assert not all_rows or len(tokens) <= self.max_rows, "more rows than it was opened for"
        self.passes.append(len(tokens))
        rows = []
        for token in tokens:
            self._cache.append(token)
            self.read.append(tuple(self._cache))
            rows.append(self._table.row(self._cache))
        assert len(self._cache) <= self.n_ctx
        return np.stack(rows[unread:] if all_rows else rows[-1:])

    def begin_draft(self) -> None:
        pass

    def end_draft(self, length: int) -> None:
        self.rewind(length)

    def rewind(self, length: int) -> None:
        assert length >= 0
        self._tree = []
        del self._cache[length:]

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        assert len(tokens) <= self.max_rows, "more rows than it was opened for"
        self.passes.append(len(tokens))
        rows = []
        for token, parent in zip(tokens, parents, strict=True):
            self._tree.append([*([] if parent < 0 else self._tree[parent]), token])
            self.read.append((*self._cache, *self._tree[-1]))
            rows.append(self._table.row(self.read[-1]))
        return np.stack(rows)

    def keep(self, path: Sequence[int]) -> None:
        for place, node in enumerate(path):
            assert self._tree[node][:-1] == ([] if place == 0 else self._tree[path[place - 1]]), "this is no path"
        self._cache += self._tree[path[-1]] if path else []
        self._tree = []


def drafter_of(
    name: str,
    draft: Table | Counting,
    sampler: StandardSampler | None = None,
    draws: bool = True,
    rng: np.random.Generator | None = None,
    small: Table | None = None,
    kind: Callable[..., FakeDraftModel] = FakeDraftModel,
    **parts: Any,
) -> Any:
    """A drafter as --drafter names it, over scripted draft models. rng: for draws; lookahead's guesses are none.

    parts: others of its DrafterContext.
    """
    context = DrafterContext(
        kind(draft),
        draft.n_vocab,
        sampler or StandardSampler(GREEDY),
        draws,
        rng or np.random.default_rng(1),
        small=kind(small or draft),
        **parts,
    )
    guessing = replace(context, rng=np.random.default_rng(0))
    names = drafters.split(name)
    return drafters.create_cascade(names, [guessing if part == "lookahead" else context for part in names])


class ScriptedDrafter:
    """Proposes the given drafts one after the other, then nothing."""

    name = "scripted"

    def __init__(self, drafts: Iterable[Sequence[int]]) -> None:
        self._drafts = iter(drafts)
        self.observed: list[Step] = []

    def start(self, prompt: Sequence[int]) -> int:
        return len(prompt)

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        tokens = tuple(next(self._drafts, ()))[:budget]
        return Draft(tokens, None, self.name) if tokens else NO_DRAFT

    def observe(self, step: Step) -> None:
        self.observed.append(step)


class ScriptedPolicy(LengthPolicy):
    """Limits drafts to the given lengths one after the other, then to nothing. missed: what it is told of."""

    uses_confidence = False

    def __init__(self, limits: Iterable[int]) -> None:
        self._limits = iter(limits)
        self.missed: list[tuple[float, float]] = []

    def limit(self, room: int) -> int:
        return min(next(self._limits, 0), room)

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        self.missed.append((confidence, outcome))


def piece(token: int) -> bytes:
    """Token 7 reads "7 "."""
    return f"{token} ".encode()


def run(
    target,
    prompt: Sequence[int] = (1,),
    drafter=None,
    k: int = 3,
    max_tokens: int = 8,
    settings: SamplingOptions = GREEDY,
    rule: str = "rejection",
    seed: int = 0,
    end: int = -1,
    stop: Sequence[str] = (),
    sampler: StandardSampler | None = None,
    policy: LengthPolicy | None = None,
    pieces: Callable[[int], bytes] = piece,
    interrupted: Callable[[], bool] = lambda: False,
    enough: int | None = None,
    rng: np.random.Generator | None = None,
) -> list[Event]:
    """All events of one run of the loop over fakes; with `enough`, those until so many tokens are there."""
    events = generate(
        prompt,
        target,
        drafter or NoDrafter(),
        policy or FixedLength(k),
        RULES[rule],
        sampler or sampler_of(rule, settings, seed),
        rng or np.random.default_rng(seed),
        TextStream(pieces, stop),
        Ending(max_tokens, lambda token: token == end, interrupted),
    )
    if enough is None:
        return list(events)
    heard: list[Event] = []
    for event in events:
        heard.append(event)
        enough -= len(event.tokens) if isinstance(event, Step) else 0
        if enough <= 0:
            break
    return heard


def steps_of(events: Iterable[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def drafts_of(events: Iterable[Event]) -> list[Step]:
    """The steps that had a draft."""
    return [step for step in steps_of(events) if step.drafted]


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """Every node of a token tree as the tokens from the top down to it."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents or (), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def tokens_of(events: Iterable[Event]) -> list[int]:
    return [token.id for step in steps_of(events) for token in step.tokens]


def text_of(events: Sequence[Event]) -> str:
    return "".join(token.text for step in steps_of(events) for token in step.tokens) + events[-1].tail


def origins_of(events: Iterable[Event]) -> list[str]:
    return [token.origin for step in steps_of(events) for token in step.tokens]
