"""Trains a draft for a target: its own answers are recorded, something learns from them, and is measured then.

All of it can be killed at any time. The same command goes on, and ends with the same file.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.config import Settings
from specdec_cli.engine.engine import one_session
from specdec_cli.engine.model_loading import load_model, require_heads
from specdec_cli.engine.session import Session
from specdec_cli.gguf.head_files import head_of
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.make_drafts import draft_copy
from specdec_cli.make_drafts.draft_figures import draft_figures
from specdec_cli.make_drafts.target_texts import RowsWanted, TextsWanted, record_texts
from specdec_cli.make_drafts.training_options import TrainingOptions, TrainingProgress
from specdec_cli.make_drafts.training_prompts import TrainingPrompts, training_prompts
from specdec_cli.make_drafts.training_recipes import Recipe, TrainingPlace, no_counts, require_memory
from specdec_cli.make_drafts.training_result import DraftFigures, DraftTrainingResult, TrainingStep
from specdec_cli.measure import hardware
from specdec_cli.measure.suites import Prompt
from specdec_cli.pairs import made_drafts
from specdec_cli.pairs.sources import ModelSource, is_profile, read_source
from specdec_cli.user_files import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specdec_cli.make_drafts.training.trainer import TrainingPlan
    from specdec_cli.make_drafts.training.windows import Windows

_HELD_OUT_SHARE = 0.1
"""Of the recorded tokens, so many more are recorded of prompts that training does not see."""
_LONGEST_PROMPT = 512
_SEED = 1


def train_draft(
    recipe: Recipe, options: TrainingOptions, progress: TrainingProgress, interrupt: Interrupt
) -> DraftTrainingResult:
    """Train, write `options.out`, and measure it.

    Raises UsageError or SpecdecError if that cannot be done, Interrupted on Ctrl-C: the best so far is in `out` then,
    if training had begun.
    """
    require_torch()
    started = perf_counter()
    for machine in options.what_if:  # what is asked for at the end is looked for before the work
        hardware.load(machine)
    other = _other(options.before) if options.before else None
    target, header = draft_copy.find_target(options.target)
    place = TrainingPlace(target, header, options.folder or options.out.with_suffix(".training"))
    begun = (place.folder / f"{recipe.kind}.pt").exists()  # then the file, if it is there, is the best so far
    draft_copy.require_place(options.out, target, options.force or begun)
    layers = recipe.layers(header)
    require_memory(recipe, header)
    place.folder.mkdir(parents=True, exist_ok=True)
    _require_disk(options, header.setting("embedding_length") or 0, len(layers), place.folder)
    _require_rows(recipe, place, interrupt)
    with one_session(_settings(options, target), interrupt, tune=False) as session:
        prompts = training_prompts(session, options.prompts, options.held_out, _LONGEST_PROMPT, options.raw)
        windows, held_out = _record(session, recipe, place, layers, prompts, options, progress)
    plan, trained = _train(recipe, place, windows, held_out, options, progress, interrupt)
    if recipe.use == "self":
        made_drafts.remember(target, options.out, f"{recipe.kind}, {trained.steps} steps")
    before, after = _measure(recipe, place, prompts, options, other, progress, interrupt)
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
        notes=(*prompts.notes, f"the texts are in {place.folder}: train longer with them (--minutes), or remove them"),
        seconds=perf_counter() - started,
        run=_command(recipe, options),
    )


def require_torch() -> None:
    """Raise SpecdecError without what training takes."""
    if missing := [name for name in ("torch", "gguf") if importlib.util.find_spec(name) is None]:
        raise SpecdecError(
            f"training takes PyTorch: {' and '.join(missing)} is not installed",
            'Install the extra: pip install "specdec-cli[train]".',
        )


def _other(name: str) -> ModelSource:
    """The draft to compare with."""
    if (source := read_source(name, [], here_first=True)).path is None:
        raise UsageError(f"{name} is not on this machine", "Download it first, with specdec pull --target.")
    return source


def _settings(options: TrainingOptions, target: Path) -> Settings:
    """Of the target alone, in passes that do not depend on the clock."""
    room, threads = _LONGEST_PROMPT + options.longest + 1, options.threads or host.physical_cores()
    return Settings(
        str(target),
        drafter="none",
        max_tokens=options.longest,
        ctx=room,
        threads=threads,
        gpu_layers=options.gpu_layers,
    )


def _require_disk(options: TrainingOptions, width: int, layers: int, folder: Path) -> None:
    from specdec_cli.make_drafts.training.recorded_texts import LIKELIEST

    needed = 2 * options.tokens * (6 * LIKELIEST + 2 * width * layers)  # prompts take about as much as answers
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SpecdecError(
            f"about {format_bytes(needed)} are needed in {folder}; {format_bytes(free)} are free",
            "Free some, name another --work folder, or give fewer --tokens.",
        )


def _require_rows(recipe: Recipe, place: TrainingPlace, interrupt: Interrupt) -> None:
    """Try heads that have learnt nothing: not every target gives the rows that heads read, and llama.cpp may end the
    process then.
    """
    if recipe.use in ("model", "self"):
        return
    trial = place.folder / "untrained.gguf"
    recipe.student(place, no_counts(place.header)).write(trial)
    try:
        require_heads(place.target, trial, interrupt)
    except SpecdecError as error:
        raise SpecdecError(
            f"{place.target.name} does not give the hidden rows that {recipe.kind} reads: {error}",
            "Train a draft model for it: specdec draft distill.",
        ) from None
    finally:
        trial.unlink(missing_ok=True)


def _record(
    session: Session,
    recipe: Recipe,
    place: TrainingPlace,
    layers: tuple[int, ...],
    prompts: TrainingPrompts,
    options: TrainingOptions,
    progress: TrainingProgress,
) -> tuple[Windows, Windows]:
    """The target's answers to both kinds of prompts."""
    from specdec_cli.make_drafts.training.windows import Windows

    source = recipe.source(place)
    with ExitStack() as loaded:
        other = load_model(source, Placement(options.gpu_layers), session.interrupt) if source else None
        if other:
            loaded.callback(other.close)
        rows, made = RowsWanted(recipe.rows_name(place.header), layers, other), []
        for name, chosen, share in (("answers", prompts.train, 1.0), ("held-out", prompts.held_out, _HELD_OUT_SHARE)):
            wanted = TextsWanted(int(share * options.tokens), options.longest, options.temperatures)
            _require_same(place.folder / name, place, chosen, replace(wanted, tokens=0))
            paths = record_texts(session, chosen, wanted, rows, place.folder / name, progress.recording)
            made.append(Windows(paths, options.window))
    return made[0], made[1]


def _require_same(
    folder: Path, place: TrainingPlace, prompts: Mapping[Prompt, Sequence[int]], wanted: TextsWanted
) -> None:
    """Raise SpecdecError if there are answers already that came about in another way."""
    about = place.target.stat()
    what = [place.target.name, about.st_size, about.st_mtime_ns, asdict(wanted), list(prompts.values())]
    data, record = msgspec.json.encode(what), folder / "answers.json"
    if record.exists() and record.read_bytes() != data:
        raise SpecdecError(f"{folder} holds other answers", "Remove it, or name another --work folder.")
    folder.mkdir(parents=True, exist_ok=True)
    record.write_bytes(data)


def _train(
    recipe: Recipe,
    place: TrainingPlace,
    windows: Windows,
    held_out: Windows,
    options: TrainingOptions,
    progress: TrainingProgress,
    interrupt: Interrupt,
) -> tuple[TrainingPlan, TrainingStep]:
    """Train, and put the best weights in their place, also after an interrupt."""
    from specdec_cli.make_drafts.training import trainer

    counts = windows.used(len(no_counts(place.header)))
    plan = _plan(recipe, place, windows, counts, options, progress)
    student = recipe.student(place, counts)
    checkpoint, made = place.folder / f"{recipe.kind}.pt", place.folder / f"{recipe.kind}.gguf"
    try:
        return plan, trainer.train(student, windows, held_out, plan, checkpoint, interrupt.is_set, progress.training)
    finally:
        if checkpoint.exists():
            student.write(made)
            shutil.move(made, options.out)
            if interrupt.is_set():
                progress.stopped(options.out.name)


def _plan(
    recipe: Recipe,
    place: TrainingPlace,
    windows: Windows,
    counts: NDArray[np.int64],
    options: TrainingOptions,
    progress: TrainingProgress,
) -> TrainingPlan:
    """So many steps as the time allows, by the first ones; of a training that was begun, what it was begun with."""
    from specdec_cli.make_drafts.training.trainer import LEAST_STEPS, TrainingPlan, seconds_of_a_step

    threads = options.threads or host.physical_cores()
    record = place.folder / f"{recipe.kind}.json"
    asked = [options.minutes, options.steps, options.batch, options.window, options.lr, options.tokens, threads]
    if record.exists():
        known, kept = msgspec.json.decode(record.read_bytes())
        if known == asked:
            return TrainingPlan(**kept)
        (place.folder / f"{recipe.kind}.pt").unlink(missing_ok=True)
    seconds = seconds_of_a_step(recipe.student(place, counts), windows, options.batch, threads)
    steps = options.steps or int(60 * options.minutes / seconds)
    if not options.steps and steps < LEAST_STEPS:
        raise SpecdecError(
            f"{options.minutes:g} minutes are {steps} steps of {seconds:,.1f} s each, too few to learn anything",
            f"Give --minutes {LEAST_STEPS * seconds / 60 + 1:,.0f} or more, or train something smaller.",
        )
    progress.planned(steps, seconds, _peak_bytes())
    plan = TrainingPlan(steps, options.batch, options.lr, _SEED, threads)
    record.write_bytes(msgspec.json.encode((asked, asdict(plan))))
    return plan


def _peak_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _measure(
    recipe: Recipe,
    place: TrainingPlace,
    prompts: TrainingPrompts,
    options: TrainingOptions,
    other: ModelSource | None,
    progress: TrainingProgress,
    interrupt: Interrupt,
) -> tuple[DraftFigures | None, DraftFigures]:
    """The draft as it was before, or the one to compare with; and the new one."""
    settings = replace(_settings(options, place.target), ctx=None)

    def measured(path: Path, use: str, tree: int) -> DraftFigures:
        progress.measuring(path.name)
        own = replace(settings, draft=str(path), drafter=use, tree=tree)
        return draft_figures(own, prompts.held_out, options.what_if, interrupt)

    before = None
    if path := recipe.before(place):
        before = measured(path, recipe.use, recipe.tree)
    elif other and other.path is not None:
        before = measured(other.path, head_of(other.header) or "model", 1)
    return before, measured(options.out, recipe.use, recipe.tree)


def _command(recipe: Recipe, options: TrainingOptions) -> str:
    """How the draft is used."""
    name = ["-p" if is_profile(options.target) else "-m", options.target]
    if recipe.use == "self":
        return shlex.join(["specdec", "run", *name, "--drafter", "self"]) + ' "..."'
    tree = ["--tree", str(recipe.tree)] if recipe.tree > 1 else []
    return shlex.join(["specdec", "run", *name, "-md", str(options.out), *tree]) + ' "..."'
