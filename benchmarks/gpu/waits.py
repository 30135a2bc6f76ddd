"""What a step waits for: batches made, work handed to the device, the wait for it, logits, sampling, Python."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import llama_cpp.llama_cpp as lib
from common import PROMPTS

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.types import Done, Prefill, Step
from specdec_cli.engine.config import Settings
from specdec_cli.engine.session import Session
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.timing import pass_laps

WAYS: dict[str, dict[str, Any]] = {
    "target alone": {"drafter": "none"},
    "k=1": {"draft_tokens": 1},
    "k=4": {"draft_tokens": 4},
    "k=8": {"draft_tokens": 8},
    "k=8, tree=4": {"draft_tokens": 8, "tree": 4},
    "k=auto": {"draft_tokens": "auto"},
}
WAYS |= {f"{name}, temp 0.8": {**way, "temp": 0.8} for name, way in WAYS.items()}
PASS_PARTS = ("set-up", "submit", "wait", "logits", "drop")
"""Of a pass: the batch written; llama_decode, which on a GPU only hands the work over; the wait until it is done, which
holds the logits' way back; llama.cpp's bookkeeping of them; rejected tokens dropped and branches kept."""
PARTS = (
    *(f"{model}: {part}" for model in ("draft", "target") for part in (*PASS_PARTS, "Python")),
    *("sampling and verdict", "rest"),
)
_FEWEST_STEPS = 10


class Watch:
    """Adds up the parts of all passes while it watches, in seconds. Wrapping costs about a microsecond a pass."""

    def __init__(self, session: Session) -> None:
        self.seconds: Counter[str] = Counter()
        self._roles = {id(loaded.context): loaded.role for loaded in session.models.all}
        self._role = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Put the clocks in, and take them out again."""
        plain = {name: getattr(LlamaContext, name) for name in ("decode", "grow", "rewind", "keep")}
        decode = lib.llama_decode
        for name, method in plain.items():
            setattr(LlamaContext, name, self._timed(method, "set-up" if name in ("decode", "grow") else "drop"))
        lib.llama_decode = partial(self._pass, decode)
        try:
            yield
        finally:
            lib.llama_decode = decode
            for name, method in plain.items():
                setattr(LlamaContext, name, method)

    def _pass(self, decode: Callable[[Any, Any], int], handle: Any, batch: Any) -> int:
        before = perf_counter()
        code = decode(handle, batch)
        submitted = perf_counter()
        lib.llama_synchronize(handle)
        self.seconds[f"{self._role}: submit"] += submitted - before
        self.seconds[f"{self._role}: wait"] += perf_counter() - submitted
        return code

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The method with its own time, apart from that of the passes in it, added to a part."""

        def timed(context: LlamaContext, *arguments: Any, **named: Any) -> Any:
            if self._role:  # called by another of these
                return method(context, *arguments, **named)
            self._role = role = self._roles[id(context)]
            known = sum(self.seconds[f"{role}: {name}"] for name in ("submit", "wait"))
            passes, before = context.passes.decode_s, perf_counter()
            try:
                return method(context, *arguments, **named)
            finally:
                own, inside = perf_counter() - before, context.passes.decode_s - passes
                known = sum(self.seconds[f"{role}: {name}"] for name in ("submit", "wait")) - known
                self.seconds[f"{role}: logits"] += inside - known
                self.seconds[f"{role}: {part}"] += own - inside
                self._role = ""

        return timed


def one_answer(session: Session, prompt: Sequence[int], settings: Settings) -> dict[str, float] | None:
    """Seconds a step of one answer, by part; None if it was too short to tell.

    The parts add up to the time from the first token to the end, without the draft model's reading of the prompt.
    """
    watch = Watch(session)
    total: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    steps, started, ended, reading = 0, 0.0, 0.0, 0.0
    with watch.watching():
        for event in session.events(prompt, seed=1, settings=settings):
            match event:
                case Prefill(model="draft"):
                    reading += event.seconds
                case Step(index=0):
                    started = event.at
                case Step():
                    steps += 1
                    phases.update(draft=event.draft_s, target=event.verify_s, sample=event.sample_s)
                    total.update(watch.seconds)
                case Done():
                    ended = event.at
            watch.seconds.clear()
    if steps < _FEWEST_STEPS:
        return None
    for role in ("draft", "target"):
        total[f"{role}: Python"] = phases[role] - sum(total[f"{role}: {part}"] for part in PASS_PARTS)
    total["sampling and verdict"] = phases["sample"]
    total["rest"] = ended - started - reading - sum(phases.values())
    return {part: total[part] / steps for part in PARTS}


def measure(session: Session, rounds: int, ways: Sequence[str]) -> list[dict[str, Any]]:
    """Microseconds a step by part, medians over prompts and rounds, for each way to decode."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for i in range(rounds):
        for text in PROMPTS:
            prompt = session.tokenize(text, raw=True)
            for name in list(ways)[:: -1 if i % 2 else 1]:
                answer = one_answer(session, prompt, replace(session.settings, **WAYS[name]))
                if answer:
                    found[name].append(answer)
    return [
        {
            "setting": name,
            "answers": len(answers),
            "us": {part: statistics.median(answer[part] for answer in answers) * 1e6 for part in PARTS},
        }
        for name, answers in found.items()
        if answers
    ]


def rows(session: Session, tokens: int, seconds: float) -> dict[str, float]:
    """What reading a row of logits for every token of a pass adds, to the row of the last: output layer, way back."""
    context, _ = session.models.contexts
    text = session.tokenize("".join(PROMPTS), raw=True)
    found = {}
    for name, count in (("every_row_ms", tokens), ("last_row_ms", 1)):
        target = session.models.target
        with closing(LlamaContext(target.model, context.n_ctx, count, target.threads, Interrupt())) as own:
            laps = pass_laps(own, text, (tokens, 1), 2, seconds, needed_rounds=8)
        found[name] = statistics.median(laps[tokens]) * 1000
    return {"tokens": tokens, **found}


ORDERS = ((1,), (2, 1), (2, 1, 1, 1), (5,), (4, 5), (5, 1), (9,), (8, 9))
"""Sizes of passes, over and over: of one size, and of sizes that change as they do where drafts are long and short."""


def planning(session: Session, rounds: int = 100) -> list[dict[str, Any]]:
    """What it costs that llama.cpp plans a pass anew when its size, or the number of its rows, is not that of the one
    before, and that a GPU replays what it has been given twice.

    Median milliseconds of each pass of an order, for all models. Orders take turns; each is gone through until it is
    settled, and then timed once.
    """
    text = session.tokenize("".join(PROMPTS), raw=True)
    found = []
    for loaded in session.models.all:
        role, context = loaded.role, loaded.opened
        orders = [order for order in ORDERS if max(order) <= context.max_rows]
        laps: dict[tuple[int, ...], list[list[float]]] = {order: [[] for _ in order] for order in orders}
        context.rewind(0)
        context.decode(text[:64])
        for _ in range(rounds):
            for order in orders:
                for turn in range(SETTLED + 1):
                    for size, its in zip(order, laps[order], strict=True):
                        before = perf_counter()
                        context.decode(text[:size], all_rows=True)
                        if turn == SETTLED:
                            its.append(perf_counter() - before)
                        context.rewind(64)
        context.rewind(0)
        for order in orders:
            ms = [statistics.median(its) * 1000 for its in laps[order]]
            found.append({"model": role, "order": order, "ms": ms})
    return found
