"""`specdec demo`: races the target alone against the target with drafts, in rounds on one prompt.

The cost of a pass over several tokens depends on the processor, and so do the settings that pay with models as small as
the bundled ones. So the demo tries a few arrangements first, each for a moment. It reports only what it measures in the
race itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from time import monotonic

from specdec_cli.decoding.divergence import Divergence, Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import Event
from specdec_cli.engine.engine import one_session
from specdec_cli.engine.generation_result import conditions
from specdec_cli.engine.session import Session, reusing
from specdec_cli.llama import quantize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.pairs.profiles import DEMO
from specdec_cli.settings.settings import Settings
from specdec_cli.user_files import bundled_dir, cache_dir, remove_abandoned, replacement

PROMPT = """\
class Stack:
    \"""A last-in, first-out collection.\"""

    def __init__(self):
        self._items = []

    def push(self, item):
        \"""Put an item on top.\"""
"""
_TOKENS, _MIN_TOKENS, _ANSWER_S = 280, 80, 0.7
"""Tokens of an answer. If the target is slow, an answer has as many as it writes in _ANSWER_S seconds, but at least
_MIN_TOKENS: more rounds show more than long ones.
"""
RACE_S = 8.0
"""Seconds that a race takes at most."""
MIN_ROUNDS, MAX_ROUNDS = 5, 20
_NARROW = 0.04
"""Half the width of an interval, in log ratios, that is narrow enough to end the race."""
_F32 = 0  # llama.cpp's number of the file type
_CLEARLY = log(1.3)
"""The speedup, as a logarithm, from which on no other arrangement is tried."""
_WARM_UP, _TRIAL, _TRIALS = 16, 64, 2
"""Tokens of an answer that warms up, tokens of an answer on trial, and the number of those."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What races. draft_tokens: fixed, because -k auto first has to learn what passes cost, which takes long on a busy
    machine. widened: the target's weights become 32-bit floats, so reading them takes most of a pass, as it does with
    large models.
    """

    drafter: str
    draft_tokens: int
    widened: bool

    def __str__(self) -> str:
        drafts = "repeated text" if self.drafter == "ngram" else "repeated text or a smaller model"
        weights = " Its weights are widened to 32 bits, so passes cost what they do with large models."
        said = f"A model of 9 M weights continues a Python file on one core. Drafts come from {drafts}."
        return f"{said}{weights if self.widened else ''}"


ARRANGEMENTS = (
    Arrangement("ngram+model", 6, widened=True),
    Arrangement("ngram", 8, widened=True),
    Arrangement("ngram", 8, widened=False),
)


def settings(arrangement: Arrangement) -> Settings:
    """The settings of a race, independent of the user's config.yaml. Greedy, so both must write the same text. One
    thread, because two wait for each other on a busy machine.
    """
    target, draft = (str(bundled_dir() / DEMO / f"{role}.gguf") for role in ("target", "draft"))
    drafter, draft_tokens = arrangement.drafter, arrangement.draft_tokens
    return Settings(target, draft, drafter=drafter, draft_tokens=draft_tokens, threads=1, max_tokens=_TOKENS)


def _widened(target: Path, interrupt: Interrupt) -> Path | None:
    """A copy with 32-bit weights in the user's cache; None if it can't be made. Raises Interrupted."""
    try:
        about = target.stat()
        folder = cache_dir() / "demo"
        copy = folder / f"target-f32-{about.st_size}-{about.st_mtime_ns}.gguf"
        if not copy.exists():
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder, "specdec-*.tmp")
            with replacement(copy) as new:
                quantize.write(quantize.Copy(target, new, 2, file_type=_F32), interrupt, lambda _: None)
    except (OSError, SpecdecError):
        return None
    return copy


@contextmanager
def best_race(interrupt: Interrupt, until: float) -> Iterator[Race]:
    """A race with the first arrangement that clearly pays here, or else with the one that pays most.

    until: the latest end, on the clock `monotonic`. Raises Interrupted, or SpecdecError if the pair is damaged.
    """
    with ExitStack() as stack:
        races: dict[float, Race] = {}
        for arrangement in ARRANGEMENTS:
            own = settings(arrangement)
            if arrangement.widened:
                copy = _widened(Path(own.target), interrupt)
                if copy is None:  # the disk is full, or the folder can't be written to
                    continue
                own = replace(own, target=str(copy))
            race = Race(stack.enter_context(one_session(own, interrupt)), arrangement, until)
            races[race.trial()] = race
            if max(races) > _CLEARLY or monotonic() > until - RACE_S:  # on a busy machine, time runs out
                break
        yield races[max(races)]


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Tokens per second of each answer, in the order of the rounds. speedup: paired by round; None if nothing was
    drafted or no round was measured. divergence: None if all answers are the same. tokens_per_step: with drafts.
    """

    alone: tuple[float, ...]
    drafted: tuple[float, ...]
    speedup: Interval | None
    tokens_per_step: float
    divergence: Divergence | None


class Race:
    """Both answer once in each round, in alternating order, until the interval is narrow or the time is up. Iterate
    over it once.

    alone, drafted: the answers so far, one for each complete round.
    """

    def __init__(self, session: Session, arrangement: Arrangement, until: float) -> None:
        self.arrangement = arrangement
        self.alone: list[Metrics] = []
        self.drafted: list[Metrics] = []
        self._session, self._until = session, until
        self._prompt = session.tokenize(PROMPT, raw=True)
        session.open(len(self._prompt))
        self._settings = {True: session.settings, False: session.settings.alone()}

    @property
    def conditions(self) -> str:
        target = self._session.models.target
        return conditions(target.threads, target.open_kv.n_ctx)

    def trial(self) -> float:
        """The speedup in a few short answers, as a logarithm, after both have read the prompt. Sets the length of the
        race's answers.
        """
        speeds: dict[bool, list[float]] = {True: [], False: []}
        with reusing(self._session):
            for number in range(1 + _TRIALS):
                for drafts, own in self._settings.items():
                    tokens = _TRIAL if number else _WARM_UP
                    short = replace(own, max_tokens=tokens)
                    metrics = Metrics.of(self._session.events(self._prompt, 0, settings=short))
                    if number:
                        speeds[drafts].append(log(metrics.tokens_per_s or 1.0))
        tokens = min(max(int(exp(fmean(speeds[False])) * _ANSWER_S), _MIN_TOKENS), _TOKENS)
        self._settings = {drafts: replace(own, max_tokens=tokens) for drafts, own in self._settings.items()}
        return fmean(speeds[True]) - fmean(speeds[False])

    def __iter__(self) -> Iterator[tuple[bool, Event]]:
        """Each event of each answer, and whether that answer uses drafts. Raises Interrupted."""
        until = min(self._until, monotonic() + RACE_S)
        for number in range(MAX_ROUNDS):
            answers: dict[bool, Metrics] = {}
            for drafts in (False, True) if number % 2 == 0 else (True, False):
                answers[drafts] = Metrics()
                for event in self._session.events(self._prompt, 0, settings=self._settings[drafts]):
                    answers[drafts].add(event)
                    yield drafts, event
                    if monotonic() > until:
                        return
                if answers[drafts].reason == "interrupted":
                    raise Interrupted
            self.alone.append(answers[False])
            self.drafted.append(answers[True])
            if self._is_narrow():
                return

    def _is_narrow(self) -> bool:
        interval = geometric_interval(self._ratios()) if len(self.alone) >= MIN_ROUNDS else None
        return bool(interval and interval.low and interval.high and log(interval.high / interval.low) < 2 * _NARROW)

    def _ratios(self) -> list[float]:
        if not any(each.drafted for each in self.drafted):
            return []
        return [drafted / alone for alone, drafted in self._speeds()]

    def _speeds(self) -> list[tuple[float, float]]:
        """Tokens per second alone and with drafts, for each complete round."""
        pairs = zip(self.alone, self.drafted, strict=True)
        speeds = ((alone.tokens_per_s, drafted.tokens_per_s) for alone, drafted in pairs)
        return [(alone, drafted) for alone, drafted in speeds if alone and drafted]

    def result(self) -> RaceResult:
        alone, drafted = zip(*self._speeds(), strict=True) if self._speeds() else ((), ())
        per_pass = fmean(each.tokens_per_step or 1.0 for each in self.drafted) if self.drafted else 1.0
        return RaceResult(alone, drafted, geometric_interval(self._ratios()), per_pass, self._divergence())

    def _divergence(self) -> Divergence | None:
        answers, session = [*self.alone[:1], *self.drafted, *self.alone], self._session
        differing = next((each for each in answers if each.tokens != answers[0].tokens), None)
        if differing is None:
            return None
        threads = session.models.target.open_kv.thread_log
        alone, answer = (Transcript.of(each.history, threads) for each in (answers[0], differing))
        return session.divergence(self._prompt, alone, answer, 0, session.settings)
