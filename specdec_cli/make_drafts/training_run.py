"""Trains a draft for a target: records the target's answers, trains on them, then measures the draft.

It can be killed at any time. The same command continues, and ends with the same file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.engine.engine import one_session
from specdec_cli.engine.session import Session
from specdec_cli.gguf.head_files import head_of
from specdec_cli.gguf.header import Header
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.make_drafts.draft_copy import find_target, remembered, require_place, require_room, use_command
from specdec_cli.make_drafts.draft_figures import DraftFigures, draft_figures
from specdec_cli.make_drafts.recipe import (
    TRAINING_BYTES,
    TREES,
    Counts,
    DistilRecipe,
    Recipe,
    TrainingOptions,
    TrainingPlace,
    TrainingProgress,
    TrainingStep,
)
from specdec_cli.make_drafts.target_texts import (
    LIKELIEST,
    RowsWanted,
    TextsWanted,
    TrainingPrompts,
    record_texts,
    training_prompts,
)
from specdec_cli.measure import hardware
from specdec_cli.measure.suites import SuitePrompt
from specdec_cli.pairs.model_sources import read_local
from specdec_cli.settings.settings import Settings
from specdec_cli.user_files import format_bytes, remove_abandoned, write_whole
from specdec_cli.weights.model_loading import load_model, require_heads

if TYPE_CHECKING:
    from specdec_cli.make_drafts.training.trainer import TrainingPlan
    from specdec_cli.make_drafts.training.windows import Windows

_HELD_OUT_SHARE = 0.1
"""Tokens recorded from held-out prompts, as a share of those recorded for training."""
_LONGEST_PROMPT = 512


@dataclass(frozen=True, slots=True)
class DraftTrainingResult:
    """A trained draft. kind: eagle3, medusa, exit, distil or scratch. texts: how many it learned from. agreement: with
    the target on held-out texts, for each position of a draft. before: of the draft to compare with.
    """

    kind: str
    target: str
    out: str
    bytes: int
    target_bytes: int
    texts: int
    steps: int
    agreement: tuple[float, ...]
    before: DraftFigures | None
    after: DraftFigures
    notes: tuple[str, ...]
    seconds: float
    run: str


def train_draft(
    recipe: Recipe, options: TrainingOptions, progress: TrainingProgress, interrupt: Interrupt
) -> DraftTrainingResult:
    """Train, write `options.out`, and measure it.

    Raises UsageError or SpecdecError if that can't be done, Interrupted on Ctrl-C; if training had begun, `out` has the
    best draft so far.
    """
    require_torch()
    started = perf_counter()
    for machine in options.what_if:  # fail before the work, not after it
        hardware.load(machine)
    other = read_local(options.before) if options.before else None
    target, header = find_target(options.target)
    folder, threads = options.folder or options.out.with_suffix(".training"), options.threads or host.physical_cores()
    place = TrainingPlace(target, header, folder, threads, interrupt, options.window)
    training = _Training(recipe, options, place, progress)
    training.prepare(other[0] if other else None)
    with one_session(training.settings, interrupt, tune=False) as session:
        prompts = training_prompts(session, options.prompts, options.held_out, _LONGEST_PROMPT, options.raw)
        windows, held_out = training.record(session, prompts)
        notes = (*prompts.notes, *session.notes)
    if (answered := windows.answered) < options.tokens:
        what = f"the target's answers have only {answered:,} of the {options.tokens:,} tokens"
        notes += (f"{what}: give more --prompts, or a temperature above 0",)
    plan, trained = training.train(windows, held_out)
    how = f"{recipe.kind}, {trained.steps} steps"
    notes += remembered(target, options.out, how) if recipe.use == "self" else ()
    notes += (f"the texts are in {folder}: to train longer, add --minutes and --force; otherwise, remove the folder",)
    before, after = training.measure(prompts.held_out, other)
    return DraftTrainingResult(
        kind=recipe.kind,
        target=str(target),
        out=str(options.out),
        bytes=options.out.stat().st_size,
        target_bytes=header.size,
        texts=len(windows),
        steps=plan.steps,
        agreement=trained.best,
        before=before,
        after=after,
        notes=notes,
        seconds=perf_counter() - started,
        run=_command(recipe, options),
    )


def require_torch() -> None:
    """Raise SpecdecError if a package for training isn't installed."""
    if missing := [name for name in ("torch", "gguf") if importlib.util.find_spec(name) is None]:
        raise SpecdecError(
            f"training needs Python packages that aren't installed: {', '.join(missing)}",
            'Install the extra: pip install "specdec-cli[train]".',
        )


@dataclass(frozen=True, slots=True)
class _Training:
    """One training run, from its checks to its measurements."""

    recipe: Recipe
    options: TrainingOptions
    place: TrainingPlace
    progress: TrainingProgress

    @property
    def settings(self) -> Settings:
        """For the target alone, in passes that don't depend on timings."""
        options = self.options
        return Settings(
            str(self.place.target),
            drafter="none",
            max_tokens=options.longest,
            ctx=_LONGEST_PROMPT + options.longest + 1,
            threads=self.place.threads,
            gpu_layers=options.gpu_layers,
        )

    @property
    def checkpoint(self) -> Path:
        """The progress of this output file: others may share the folder."""
        out = self.options.out.absolute()
        return self.place.folder / f"{out.stem[:40]}-{hashlib.sha256(os.fsencode(out)).hexdigest()[:8]}.pt"

    @property
    def _record(self) -> Path:
        return self.checkpoint.with_suffix(".json")

    @property
    def _asked(self) -> list[Any]:
        """The options that determine the training."""
        options = self.options
        asked = [options.minutes, options.steps, options.window, options.lr, options.tokens, self.place.threads]
        return [*asked, repr(self.recipe)]

    def _recorded(self) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """What the checkpoint's training was asked for, what it started from, and its plan."""
        if not self._record.exists():
            return [], [], {}
        asked, inputs, plan = msgspec.json.decode(self._record.read_bytes())
        return asked, inputs, plan

    def prepare(self, other: Path | None = None) -> None:
        """Raise UsageError or SpecdecError if the target, the memory, the disk or the output file isn't suitable.

        other: the draft to compare with.
        """
        # After training has begun, its output file is the best draft so far and may be overwritten.
        begun = self.checkpoint.exists() and self._recorded()[0] == self._asked
        drafts = filter(None, (other, self.recipe.draft if isinstance(self.recipe, DistilRecipe) else None))
        require_place(self.options.out, self.place.target, self.options.force or begun, drafts)
        row_bytes = 2 * self.place.width * len(self.recipe.layers(self.place))
        memory, free = self.recipe.needed_bytes(self.place), host.available_memory()
        if free is not None and memory > free:
            raise SpecdecError(
                f"training needs about {format_bytes(memory)} of memory, and {format_bytes(free)} are free",
                "Train something smaller: fewer --words, a smaller --width, or another kind of draft.",
            )
        self.place.folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.place.folder, "specdec-*.tmp")
        texts = self.place.folder.glob(f"*/{self.recipe.rows_name(self.place)}/*.npz")
        recorded = sum(text.stat().st_size for text in texts)
        needed = 2 * self.options.tokens * (6 * LIKELIEST + row_bytes)  # prompts take about as much as answers
        needed = 0 if begun else max(0, needed - recorded)  # training begins with the last of them
        # A checkpoint is replaced by the next only when that is complete.
        needed += (1 if begun else 2) * TRAINING_BYTES * self.recipe.weights(self.place)[0]
        require_room(self.place.folder, needed, "Free some space, use another --work folder, or fewer --tokens.")
        if self.recipe.use not in ("model", "self"):
            self._require_rows()

    def _require_rows(self) -> None:
        """Try untrained heads: some targets don't give the rows that heads read, and llama.cpp may end the process."""
        trial, target = self.place.folder / "untrained.gguf", self.place.target
        self.recipe.student(self.place, np.zeros(self.place.n_vocab, np.int64)).write(trial)
        try:
            require_heads(target, trial, self.place.interrupt)
        except SpecdecError as error:
            raise SpecdecError(
                f"{target.name} does not give the hidden rows that {self.recipe.kind} reads: {error}",
                "Train a draft model for it: specdec draft distill.",
            ) from None
        finally:
            trial.unlink(missing_ok=True)

    def record(self, session: Session, prompts: TrainingPrompts) -> tuple[Windows, Windows]:
        """Record the target's answers to the prompts to train on, and to those that are held out."""
        from specdec_cli.make_drafts.training.windows import Windows

        recipe, options, place = self.recipe, self.options, self.place
        wanted, made = TextsWanted(options.tokens, options.longest, options.temperatures), []
        parts = (
            (place.answers, prompts.train, wanted),
            (place.folder / "held-out", prompts.held_out, replace(wanted, tokens=int(_HELD_OUT_SHARE * wanted.tokens))),
        )
        for folder, chosen, _ in parts:
            _require_same(folder, place.target, chosen, replace(wanted, tokens=0))
        source = recipe.source(place)
        with (
            closing(load_model(source, Placement(options.gpu_layers), place.interrupt)) if source else nullcontext()
        ) as other:
            rows = RowsWanted(recipe.rows_name(place), recipe.layers(place), other)
            for folder, chosen, part in parts:
                paths = record_texts(session, chosen, part, rows, folder, self.progress.recording)
                made.append(Windows(paths, options.window, recipe.longest(place)))
        return made[0], made[1]

    def train(self, windows: Windows, held_out: Windows) -> tuple[TrainingPlan, TrainingStep]:
        """Train, and write the best weights to `out`, even after an interrupt."""
        from specdec_cli.make_drafts.training import trainer

        counts = windows.used(self.place.n_vocab)
        plan = self._plan(windows, counts)
        student, stopped = self.recipe.student(self.place, counts), self.place.interrupt.is_set
        run = trainer.TrainingRun(student, plan, self.checkpoint)  # if this fails, the student is untrained
        try:
            return plan, trainer.train(run, windows, held_out, stopped, self.progress.training)
        finally:
            if self.checkpoint.exists():
                made = self.checkpoint.with_suffix(".gguf")
                student.write(made)
                shutil.move(made, self.options.out)
                if stopped():
                    self.progress.stopped(self.options.out.name)

    def _plan(self, windows: Windows, counts: Counts) -> TrainingPlan:
        """The plan of the checkpoint if it's of the same options, recipe and texts; otherwise a new one."""
        from specdec_cli.make_drafts.training.trainer import TrainingPlan

        before = self.recipe.before(self.place)
        inputs = [before and _version(before), hashlib.sha256(counts.tobytes()).hexdigest()]
        *known, kept = self._recorded()
        if known == [self._asked, inputs]:
            plan = TrainingPlan(**kept)
        else:
            require_place(self.options.out, self.place.target, self.options.force)  # if only the inputs are others
            plan = self._new_plan(windows, counts)
            self.checkpoint.unlink(missing_ok=True)
        write_whole(self._record, msgspec.json.encode([self._asked, inputs, asdict(plan)]))
        return plan

    def _new_plan(self, windows: Windows, counts: Counts) -> TrainingPlan:
        """As many steps as the time allows, estimated from the first ones."""
        from specdec_cli.make_drafts.training.trainer import MIN_STEPS, TrainingPlan, seconds_of_a_step

        options, threads = self.options, self.place.threads
        seconds = seconds_of_a_step(self.recipe.student(self.place, counts), windows, threads)
        steps = options.steps or int(60 * options.minutes / seconds)
        if not options.steps and steps < MIN_STEPS:
            raise SpecdecError(
                f"{options.minutes:g} minutes are {steps} steps of {seconds:,.1f} s each, too few to learn anything",
                f"Use --minutes {MIN_STEPS * seconds / 60 + 1:,.0f} or more, or train a smaller draft.",
            )
        self.progress.planned(steps, seconds, _peak_bytes())
        return TrainingPlan(steps, options.lr, threads)

    def measure(
        self, prompts: Mapping[SuitePrompt, Sequence[int]], other: tuple[Path, Header] | None
    ) -> tuple[DraftFigures | None, DraftFigures]:
        """Measure the draft to compare with, or else the one before training; and the new draft."""
        recipe = self.recipe

        def measured(path: Path, use: str) -> DraftFigures:
            self.progress.measuring(path.name)
            settings = replace(self.settings, ctx=None, draft=str(path), drafter=use, tree=TREES.get(use, 1))
            return draft_figures(settings, prompts, self.options.what_if, self.place.interrupt)

        before = None
        if other:
            before = measured(other[0], head_of(other[1]) or "model")
        elif path := recipe.before(self.place):
            before = measured(path, recipe.use)
        return before, measured(self.options.out, recipe.use)


def _require_same(
    folder: Path, target: Path, prompts: Mapping[SuitePrompt, Sequence[int]], wanted: TextsWanted
) -> None:
    """Raise SpecdecError if a folder has answers of another target, other prompts or other options."""
    what = [*_version(target), asdict(wanted), list(prompts.values())]
    data, record = msgspec.json.encode(what), folder / "answers.json"
    if not record.exists():
        write_whole(record, data)
    elif record.read_bytes() != data:
        raise SpecdecError(
            f"{folder} has answers that were recorded with another target, other prompts or other options",
            f"Remove {folder.parent}, or use another --work folder.",
        )


def _version(path: Path) -> list[str | int]:
    """What changes with a file."""
    about = path.stat()
    return [path.name, about.st_size, about.st_mtime_ns]


def _peak_bytes() -> int:
    """The most memory that this process has used, in bytes; 0 if the system doesn't report it."""
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _command(recipe: Recipe, options: TrainingOptions) -> str:
    """The command that uses the draft."""
    if recipe.use == "self":
        return use_command(options.target, "--drafter", "self")
    tree = ["--tree", str(TREES[recipe.use])] if recipe.use in TREES else []
    return use_command(options.target, "-md", str(options.out), *tree)
