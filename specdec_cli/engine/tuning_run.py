"""The measurements behind `tune`: threads, placement, costs, and what the draft would have proposed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from time import perf_counter

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.engine import prompt as prompt_text
from specdec_cli.engine.acceptance_recorder import record
from specdec_cli.engine.config import Settings
from specdec_cli.engine.model_pair import Pair
from specdec_cli.engine.session import Session
from specdec_cli.evaluation.simulator import Answer
from specdec_cli.llama import library
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.timing import pass_seconds
from specdec_cli.models import profiles, suites
from specdec_cli.models.suites import Prompt
from specdec_cli.models.user_files import bundled_dir
from specdec_cli.store.acceptance_traces import Recording, identity
from specdec_cli.store.tuning import Tuning

_MIXTURE = ("code", "chat", "reasoning", "structured", "summarisation", "creative")
_PLACEMENT_CONTEXT = 256
_ROOM = 32
"""Tokens that an answer must have room for after its prompt, and for the drafts that go astray."""
_LEAST_TOKENS = 100
"""Recorded places below which acceptance is anybody's guess."""


class Tuner:
    """Measures a session's pair. `seconds`: about how long, two thirds of it for acceptance."""

    def __init__(self, session: Session, suite: str | None, system: str | None, raw: bool, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._settings = session.settings
        self.tried: dict[str, dict[int, float]] = {}
        """Seconds of a single-token pass by number of threads, of `target` and `draft`."""
        self.filled: dict[str, float] = {}
        """Seconds of single-token passes in a filled cache, and how many tokens it held."""
        trained = session.pair.draft.setting("context_length") if session.pair.draft else None
        room = min(self._settings.ctx or sys.maxsize, trained if isinstance(trained, int) else sys.maxsize) - _ROOM
        self._prompts: list[tuple[Prompt, list[int]]] = []
        for prompt in _chosen(session, suite):
            tokens, _ = prompt_text.tokenize(prompt.text, system, raw, session.target, session.pair.target)
            if len(tokens) <= room:
                self._prompts.append((prompt, tokens))
        if not self._prompts:
            raise SpecdecError(
                "every prompt is too long for the context of the models", "Give shorter --prompts, or a larger -c."
            )
        session.open_contexts(max(len(tokens) for _, tokens in self._prompts))
        if not session.drafts:
            raise SpecdecError(session.notes[-1], "There is nothing to tune without it.")
        self._text = list(itertools.islice(itertools.cycle(itertools.chain(*(t for _, t in self._prompts))), 600))

    def time(self) -> None:
        """Choose the numbers of threads, then measure the cost curves with them, and once more in a filled cache."""
        session, settings = self._session, self._settings
        target, draft = session.contexts
        threads = settings.threads or self._fastest("target")
        threads_draft = settings.threads_draft or settings.threads or self._fastest("draft")
        session.use_threads(threads, threads_draft)
        session.costs(self._text, budget_s=self._seconds * 0.15)
        fill = min(target.n_ctx, draft.n_ctx) - 8
        if target.rewinds and draft.rewinds and fill > 64:
            self.filled = {"tokens": fill}
            for name, context in (("target", target), ("draft", draft)):
                context.rewind(0)
                context.decode((self._text * (fill // len(self._text) + 1))[:fill])
                laps = []
                for _ in range(5):
                    before = perf_counter()
                    context.decode(self._text[:1])
                    laps.append(perf_counter() - before)
                    context.rewind(fill)
                self.filled[name] = sorted(laps)[2]

    def record(self) -> Recording:
        """Answer prompt after prompt, the categories in turn, until the time is up."""
        settings, session = self._settings, self._session
        answers: list[Answer] = []
        deadline = perf_counter() + self._seconds * 0.65
        seed = settings.seed or 0
        for prompt, tokens in self._in_turn():
            answer, _ = record(session, tokens, settings, seed + len(answers), prompt.category)
            if answer.stands:
                answers.append(answer)
            if perf_counter() > deadline:
                break
        if sum(len(answer.stands) for answer in answers) < _LEAST_TOKENS:
            raise SpecdecError(
                "too little could be recorded to predict anything", "Give more --seconds, or other --prompts."
            )
        about = identity(session.pair.target_path, session.pair.draft_path)
        return Recording(settings.temp == 0, tuple(answers), about)

    def tuning(self, calibrations: dict[str, Calibration]) -> Tuning:
        """Everything that is kept."""
        session = self._session
        threads, threads_draft = session.threads
        return Tuning(
            machine=library.machine(),
            threads=threads,
            threads_draft=threads_draft,
            gpu_layers=self._settings.gpu_layers,
            gpu_layers_draft=self._settings.gpu_layers_draft,
            costs=session.costs(self._text),
            calibrations=calibrations,
        )

    def _fastest(self, name: str) -> int:
        """The number of threads with which one token and four together take least."""
        context = self._session.contexts[0 if name == "target" else 1]
        cores = library.physical_cores()
        candidates = sorted({1, 2, 4, 8, 12, 16, 24, 32, cores} & set(range(1, cores + 1)))
        sizes = (1, 4) if name == "target" else (1,)
        total: dict[int, float] = {}
        for threads in candidates:
            context.set_threads(threads)
            found = pass_seconds(context, self._text, sizes, len(sizes), self._seconds * 0.1 / len(candidates))
            self.tried.setdefault(name, {})[threads] = found[1]
            total[threads] = sum(found.values())
        return min(candidates, key=lambda threads: total[threads])

    def _in_turn(self) -> Iterator[tuple[Prompt, list[int]]]:
        """One prompt of each category after the other; at a temperature, again and again."""
        by_category: dict[str, list[tuple[Prompt, list[int]]]] = {}
        for entry in self._prompts:
            by_category.setdefault(entry[0].category, []).append(entry)
        rounds = itertools.zip_longest(*by_category.values())
        once = [entry for entries in rounds for entry in entries if entry is not None]
        return iter(once) if self._settings.temp == 0 else itertools.islice(itertools.cycle(once), 4 * len(once))


def place_draft(pair: Pair, settings: Settings, interrupt: Interrupt) -> tuple[Settings, dict[str, float]]:
    """Where the draft model is faster, on the GPU or on the CPU beside it, and the seconds of a token on each.

    Without a GPU, or if the user has said where, there is nothing to try.
    """
    if pair.draft_path is None or settings.gpu_layers_draft != -1 or not library.supports_gpu():
        return settings, {}
    threads = settings.threads_draft or settings.threads or library.physical_cores()
    places = {"GPU": -1, "CPU": 0}
    laps: dict[str, float] = {}
    for place, layers in places.items():
        with (
            suppress(SpecdecError),  # it may not fit beside the target
            closing(Model(pair.draft_path, layers, interrupt)) as model,
            closing(LlamaContext(model, _PLACEMENT_CONTEXT, 1, threads, interrupt)) as context,
        ):
            text = model.tokenize("The quick brown fox jumps over the lazy dog.")
            laps[place] = pass_seconds(context, text, (1,), needed=1, budget_s=1.0, needed_rounds=8)[1]
    if not laps:
        return settings, {}
    return replace(settings, gpu_layers_draft=places[min(laps, key=lambda place: laps[place])]), laps


def _chosen(session: Session, suite: str | None) -> list[Prompt]:
    """The prompts of a suite; by default a mixture, or Python's beginnings for the bundled pair."""
    if suite:
        return suites.load(suite)
    if session.pair.target_path.parent == bundled_dir() / profiles.DEMO:
        return suites.load("python")
    found: list[Prompt] = []
    for name in _MIXTURE:
        found += [replace(prompt, category=name) for prompt in suites.load(name)[:4]]
    return found
