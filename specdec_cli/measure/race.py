"""`specdec demo`: the target alone against the target with drafts, in rounds that take turns on one prompt.

What a pass over several tokens costs differs from processor to processor, and so does what pays with models as small as
those that come with specdec. So a few arrangements are tried first, each for a moment. What is reported of the one that
was chosen comes from the race alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import monotonic

import platformdirs

from specdec_cli.decoding.divergence import Divergence, Transcript
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import Event
from specdec_cli.engine.config import Settings
from specdec_cli.engine.engine import one_session
from specdec_cli.engine.generation import conditions
from specdec_cli.engine.session import Session, reusing
from specdec_cli.llama import quantize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.user_files import bundled_dir

PROMPT = """\
class Stack:
    \"""A last-in, first-out collection.\"""

    def __init__(self):
        self._items = []

    def push(self, item):
        \"""Put an item on top.\"""
"""
_TOKENS, _LEAST_TOKENS, _ANSWER_S = 280, 80, 0.7
"""Tokens of an answer, so that it can be watched, and how few and in how many seconds where the target is slow: a few
rounds more say more than long ones.
"""
RACE_S = 8.0
"""How long a race goes on at most."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 20
_NARROW = 0.04
"""Half the width of the interval, in log ratios, from which on more rounds are not needed."""
_F32 = 0
"""llama.cpp's number of the file type."""
_CLEARLY = log(1.3)
"""How many times as fast an arrangement must be, for no other to be tried."""
_WARM_UP, _TRIAL, _TRIALS = 16, 64, 2
"""Tokens of an answer before the first that counts, for first passes are slow; of an answer on trial; and of these."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What races. draft_tokens: fixed, for on a busy machine -k auto would have to learn first what passes cost.
    widened: the target's weights become 32-bit floats, four times the memory, so that reading them takes most of a
    pass, as with large models.
    """

    drafter: str
    draft_tokens: int
    widened: bool

    def __str__(self) -> str:
        drafts = "repeated text is the draft" if self.drafter == "ngram" else "repeated text or a smaller model drafts"
        weights = "its weights widened to 32 bits, so that a pass costs what it does on large models"
        said = (
            f"A model of 9 M weights continues a Python file, repeating itself as small models do; {drafts}; one core"
        )
        return f"{said}{f'; {weights}' if self.widened else ''}."


ARRANGEMENTS = (
    Arrangement("ngram+model", 6, widened=True),
    Arrangement("ngram", 8, widened=True),
    Arrangement("ngram", 8, widened=False),
)


def settings(arrangement: Arrangement) -> Settings:
    """Whatever the user's config.yaml says: greedy, so that both must write the same text. One thread, for two wait for
    each other where other programs run.
    """
    target, draft = (str(_folder() / f"{role}.gguf") for role in ("target", "draft"))
    own = Settings(target=target, draft=draft, drafter="model", threads=1, max_tokens=_TOKENS)
    return replace(own, drafter=arrangement.drafter, draft_tokens=arrangement.draft_tokens)


def _folder() -> Path:
    return bundled_dir() / "demo"


def _widened(target: Path, interrupt: Interrupt) -> Path | None:
    """A copy with 32-bit weights, kept in the user's cache; None if it cannot be made. Raises Interrupted."""
    try:
        about = target.stat()
        folder = platformdirs.user_cache_path("specdec", appauthor=False) / "demo"
        copy = folder / f"target-f32-{about.st_size}-{about.st_mtime_ns}.gguf"
        if not copy.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder) as making:
                new = Path(making) / copy.name
                quantize.write(quantize.Copy(target, new, 2, file_type=_F32), interrupt, lambda _: None)
                new.replace(copy)
    except (OSError, SpecdecError):
        return None
    return copy


@contextmanager
def best_race(interrupt: Interrupt, until: float) -> Iterator[Race]:
    """A race of the first arrangement that clearly pays here, or else of the one that pays most.

    until: when it ends at the latest, on the clock `monotonic`. Raises Interrupted, or SpecdecError if the pair is
    damaged.
    """
    with ExitStack() as stack:
        races: dict[float, Race] = {}
        for arrangement in ARRANGEMENTS:
            own = settings(arrangement)
            if arrangement.widened:
                copy = _widened(Path(own.target), interrupt)
                if copy is None:  # no room, or a folder that cannot be written to
                    continue
                own = replace(own, target=str(copy))
            race = Race(stack.enter_context(one_session(own, interrupt)), arrangement, until)
            races[race.trial()] = race
            if max(races) > _CLEARLY or monotonic() > until - RACE_S:  # the latter: a busy machine
                break
        yield races[max(races)]


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Tokens per second of each answer, in the order of the rounds; speedup is paired, round by round, and None after
    too few. divergence: None if all answers are the same. tokens_per_pass: with drafts.
    """

    alone: tuple[float, ...]
    drafted: tuple[float, ...]
    speedup: Interval | None
    tokens_per_pass: float
    divergence: Divergence | None

    @property
    def tells(self) -> bool:
        """Whether a ratio may be claimed: its interval excludes 1."""
        return self.speedup is not None and self.speedup.difference in ("faster", "slower")


class Race:
    """Both answer once in each round, and who begins changes, until the interval is narrow or the time is over. Iterate
    over it once.

    alone, drafted: the answers so far, one for each whole round.
    """

    def __init__(self, session: Session, arrangement: Arrangement, until: float) -> None:
        self.arrangement = arrangement
        self.alone: list[Metrics] = []
        self.drafted: list[Metrics] = []
        self.interrupted = False
        self._session, self._until = session, until
        self._prompt = session.tokenize(PROMPT, raw=True)
        session.open(len(self._prompt))
        self._settings = {True: session.settings, False: session.settings.alone()}

    @property
    def conditions(self) -> str:
        """The target's threads and context."""
        target = self._session.models.target
        return conditions(target.threads, target.opened.n_ctx)

    def trial(self) -> float:
        """How many times as fast drafts are in a few short answers, as a logarithm. Both have read the prompt. It also
        decides how long the answers of the race are.
        """
        speeds: dict[bool, list[float]] = {True: [], False: []}
        with reusing(self._session):
            for number in range(1 + _TRIALS):
                for drafts, own in self._settings.items():
                    tokens = _TRIAL if number else _WARM_UP
                    metrics = Metrics.of(
                        self._session.events(self._prompt, 0, settings=replace(own, max_tokens=tokens))
                    )
                    if number:
                        speeds[drafts].append(log(metrics.tokens_per_s or 1.0))
        tokens = min(max(int(exp(fmean(speeds[False])) * _ANSWER_S), _LEAST_TOKENS), _TOKENS)
        self._settings = {drafts: replace(own, max_tokens=tokens) for drafts, own in self._settings.items()}
        return fmean(speeds[True]) - fmean(speeds[False])

    def __iter__(self) -> Iterator[tuple[bool, Event]]:
        """Each event of each answer, with whether drafts help there."""
        until = min(self._until, monotonic() + RACE_S)
        for number in range(MOST_ROUNDS):
            answers: dict[bool, Metrics] = {}
            for drafts in (False, True) if number % 2 == 0 else (True, False):
                answers[drafts] = Metrics()
                for event in self._session.events(self._prompt, 0, settings=self._settings[drafts]):
                    answers[drafts].add(event)
                    yield drafts, event
                    if monotonic() > until:
                        return
                if answers[drafts].reason == "interrupted":
                    self.interrupted = True
                    return
            self.alone.append(answers[False])
            self.drafted.append(answers[True])
            if self._is_narrow():
                return

    def _is_narrow(self) -> bool:
        interval = geometric_interval(self._ratios()) if len(self.alone) >= LEAST_ROUNDS else None
        return bool(interval and interval.low and interval.high and log(interval.high / interval.low) < 2 * _NARROW)

    def _ratios(self) -> list[float]:
        rounds = zip(self.drafted, self.alone, strict=True)
        return [(mine.tokens_per_s or 0.0) / (own.tokens_per_s or 1.0) for mine, own in rounds]

    def result(self) -> RaceResult:
        """Of the rounds that came to their end."""
        alone, drafted = (tuple(each.tokens_per_s or 0.0 for each in answers) for answers in (self.alone, self.drafted))
        per_pass = fmean(each.tokens_per_step or 1.0 for each in self.drafted) if self.drafted else 1.0
        return RaceResult(alone, drafted, geometric_interval(self._ratios()), per_pass, self._divergence())

    def _divergence(self) -> Divergence | None:
        if not self.alone:
            return None
        session, own = self._session, self.alone[0]
        other = next((each for each in (*self.drafted, *self.alone) if each.tokens != own.tokens), None)
        if other is None:
            return None
        log_of_threads = session.models.target.opened.thread_log
        first, second = (Transcript.of(each.history, log_of_threads) for each in (own, other))
        return session.divergence(self._prompt, first, second, 0, session.settings)
