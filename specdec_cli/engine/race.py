"""`specdec demo`: the target alone against the target with drafts, in rounds that take turns on one prompt.

The bundled target is so small that arithmetic is what takes its time. In 32-bit floats it takes four times the memory,
reading that is what takes its time, as for large models, and several tokens in a pass cost little more than one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from specdec_cli.decoding.divergence import Divergence, Transcript
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Event
from specdec_cli.engine import proof
from specdec_cli.engine.acceptance_recorder import record
from specdec_cli.engine.config import AUTO, Settings
from specdec_cli.engine.engine import Engine
from specdec_cli.evaluation import simulator
from specdec_cli.evaluation.prediction import WORTH_IT
from specdec_cli.evaluation.race_result import Elsewhere, RaceResult
from specdec_cli.evaluation.statistics import geometric_interval
from specdec_cli.llama import quantize
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.models import hardware
from specdec_cli.models.user_files import bundled_dir

_FOLDER = "records"
"""Of the bundled pair that races, beside the demo pair: it was trained on files like the one that it continues."""
ROUNDS = 6
_F32 = 0
"""llama.cpp's number of the file type."""
_WARM_UP = 16
"""Tokens of an answer before the first round, with drafts and without: first passes are slow."""


def unfinished_file() -> str:
    """The beginning of a Python file, of the kind that the pair was trained on."""
    return (_folder() / "library.py.txt").read_text("utf-8")


def settings() -> Settings:
    """Whatever the user's config.yaml says: greedy, so that both must write the same text. One thread, for two wait for
    each other where other programs run; -n as long as the rest of the file needs.
    """
    target, draft = (str(_folder() / f"{role}.gguf") for role in ("target", "draft"))
    return Settings(target=target, draft=draft, drafter=AUTO, threads=1, max_tokens=480)


def _folder() -> Path:
    return bundled_dir() / "demo" / _FOLDER


@contextmanager
def engine_of(settings: Settings, interrupt: Interrupt) -> Iterator[Engine]:
    """The pair that races, with the target in 32-bit floats: a copy that is removed in the end."""
    with TemporaryDirectory(prefix="specdec-") as folder:
        copy = Path(folder) / "target-f32.gguf"
        quantize.write(quantize.Copy(Path(settings.target), copy, 2, file_type=_F32), interrupt, lambda _: None)
        with Engine(replace(settings, target=str(copy)), interrupt) as engine:
            yield engine


class Race:
    """Both answer once in each round, and who begins changes. Iterate over it once.

    alone, drafted: the answers so far, one for each round.
    """

    def __init__(self, engine: Engine, text: str, rounds: int = ROUNDS) -> None:
        self.rounds = rounds
        self.alone: list[Metrics] = []
        self.drafted: list[Metrics] = []
        self._engine = engine
        self._prompt = engine.tokenize(text, raw=True)

    @property
    def finished(self) -> bool:
        """Whether no answer was interrupted."""
        return len(self.drafted) == len(self.alone) == self.rounds

    def __iter__(self) -> Iterator[tuple[bool, Event]]:
        """Each event of each answer, with whether drafts help there."""
        engine = self._engine
        ways = {True: engine.settings, False: engine.settings.alone()}
        engine.open(len(self._prompt))
        for settings in ways.values():
            Metrics.of(engine.events(self._prompt, 0, settings=replace(settings, max_tokens=_WARM_UP)))
        for number in range(self.rounds):
            for drafts in (False, True) if number % 2 == 0 else (True, False):
                metrics = Metrics()
                for event in engine.events(self._prompt, 0, settings=ways[drafts]):
                    metrics.add(event)
                    yield drafts, event
                if metrics.reason == "interrupted":
                    return
                (self.drafted if drafts else self.alone).append(metrics)

    def result(self) -> RaceResult:
        """Of a finished race, and what it would be on other machines. Raises Interrupted."""
        alone, drafted = ([each.tokens_per_s or 0.0 for each in answers] for answers in (self.alone, self.drafted))
        speedup = geometric_interval([mine / own for own, mine in zip(alone, drafted, strict=True)])
        if speedup is None:
            raise ValueError("the race has no rounds")
        return RaceResult(
            speedup,
            alone_tokens_per_s=median(alone),
            drafted_tokens_per_s=median(drafted),
            divergence=self._divergence(),
            elsewhere=tuple(sorted(self._elsewhere(), key=lambda each: -each.speedup)),
        )

    def _divergence(self) -> Divergence | None:
        engine, own = self._engine, self.alone[0]
        other = next((each for each in (*self.drafted, *self.alone) if each.tokens != own.tokens), None)
        if other is None:
            return None
        log = engine.models.target.opened.thread_log
        first, second = (Transcript.of(each.history, log) for each in (own, other))
        return proof.divergence(engine, self._prompt, first, second, 0, engine.settings)

    def _elsewhere(self) -> Iterator[Elsewhere]:
        """The machines of `profiles/hardware` on which the draft model pays."""
        answer, _ = record(self._engine, self._prompt, self._engine.settings, 0, _FOLDER)
        for machine in map(hardware.load, hardware.names()):
            alone = simulator.alone([answer]).tokens_per_s(machine.costs)
            speedup = simulator.adaptive([answer], machine.costs, greedy=True).tokens_per_s(machine.costs) / alone
            if speedup >= WORTH_IT:
                yield Elsewhere(machine.name, machine.description, speedup)
