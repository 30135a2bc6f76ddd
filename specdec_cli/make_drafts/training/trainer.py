"""The training loop. It can be killed at any time, and continues as if it hadn't been."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import TypeAlias

import torch
from torch import nn

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.make_drafts.recipe import FIXED_BYTES, TRAINING_BYTES, TrainingStep
from specdec_cli.make_drafts.training.students import Student, trained
from specdec_cli.make_drafts.training.windows import TextBatch, Windows
from specdec_cli.user_files import replacing

WARM_UP, COOL_DOWN = 30, 0.5
"""Steps over which the learning rate rises, and the share of all steps over which it falls linearly to zero (arXiv
2405.18392)."""
BATCH, WEIGHT_DECAY, MAX_GRADIENT = 8, 0.05, 1.0
_SEED = 1
CHECKS, CHECKED = 40, 16
"""How many evaluations on held-out texts there are, and on how many windows."""
SAVING = 0.03
"""The share of the time that checkpoints may take."""
TRIED, MIN_STEPS = 5, 20
"""Steps that are timed before training, and the fewest steps that are worth training."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How to train: the same student, texts and plan give the same weights. lr: for matrices (Muon)."""

    steps: int
    lr: float
    threads: int

    def rate(self, step: int) -> float:
        """The learning rate of a step, relative to the highest."""
        return min(1.0, (step + 1) / WARM_UP, (1 - step / self.steps) / COOL_DOWN)


Optimizers: TypeAlias = list[torch.optim.Optimizer]
Report = Callable[[TrainingStep], None]


def seconds_of_a_step(student: Student, texts: Windows, threads: int) -> float:
    """Time some steps. They change the student, so it must be made again."""
    torch.set_num_threads(threads)
    _place(student)
    optimizers, laps = optimizers_of(student.model, 0.0), []
    for step in range(TRIED):
        before = monotonic()
        _step(student, texts, optimizers, TrainingPlan(TRIED, 0.0, threads), step)
        laps.append(monotonic() - before)
    return mean(laps[1:])


def train(
    run: TrainingRun, texts: Windows, held_out: Windows, stopped: Callable[[], bool], report: Report
) -> TrainingStep:
    """Train to the end of the plan; the student then has the best weights.

    Raises Interrupted once `stopped` returns True, with a checkpoint written and the best weights so far in the
    student; SpecdecError if the loss is no longer finite.
    """
    student, plan = run.student, run.plan
    watched = held_out.first(CHECKED).to(device_of(student))
    started, first, kept = monotonic(), run.step, monotonic()
    every = max(1, plan.steps // CHECKS)
    try:
        if not run.step:
            run.look(watched)  # training may make an existing draft worse
        while run.step < plan.steps:
            if stopped():
                raise Interrupted
            loss = _step(student, texts, run.optimizers, plan, run.step)
            run.step += 1
            run.loss = loss if run.step == 1 else 0.95 * run.loss + 0.05 * loss
            if run.step % every == 0 or run.step == plan.steps:
                run.look(watched)
            if monotonic() - kept > run.save_s / SAVING:
                run.save()
                kept = monotonic()
            report(run.progress((monotonic() - started) / (run.step - first)))
    finally:
        try:
            if run.step > first:
                run.save()
        finally:
            run.take_best()
    return run.progress(0.0)


def _place(student: Student) -> None:
    """Move the student to a GPU if there is one with enough memory: in all, so that a resumed run decides the same."""
    weights = student.model.parameters()
    needed = sum(each.numel() * (TRAINING_BYTES if each.requires_grad else FIXED_BYTES) for each in weights)
    cuda = torch.cuda.is_available() and needed < torch.cuda.mem_get_info()[1]
    student.model.to("cuda" if cuda else "mps" if torch.backends.mps.is_available() else "cpu")


def device_of(student: Student) -> torch.device:
    return trained(student.model)[0][1].device


class TrainingRun:
    """The state of a training run, with the best weights so far. It continues from `checkpoint` if that exists."""

    def __init__(self, student: Student, plan: TrainingPlan, checkpoint: Path) -> None:
        torch.set_num_threads(plan.threads)
        _place(student)
        self.student, self.plan, self._checkpoint = student, plan, checkpoint
        self.optimizers = optimizers_of(student.model, plan.lr)
        self.step, self.loss, self.save_s = 0, 0.0, 0.05
        self._best: list[float] = []
        self._weights: dict[str, torch.Tensor] = {}
        if checkpoint.exists():
            self._load()

    def look(self, watched: TextBatch) -> None:
        """Keep the weights if they are the best so far."""
        with torch.no_grad():
            agreement = self.student.agreement(watched)
        if not self._best or mean(agreement) >= mean(self._best):
            self._best = agreement
            self._weights = {name: weight.detach().clone() for name, weight in trained(self.student.model)}

    def take_best(self) -> None:
        with torch.no_grad():
            for name, weight in trained(self.student.model):
                weight.copy_(self._weights.get(name, weight))

    def save(self) -> None:
        before = monotonic()
        state = {
            "weights": {name: weight.detach() for name, weight in trained(self.student.model)},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "best": (self._best, self._weights),
            "latest": (self.step, self.loss),
        }
        try:
            with replacing(self._checkpoint) as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:  # if the disk is full, torch raises the latter
            why = error.strerror if isinstance(error, OSError) else "the disk may be full"
            raise SpecdecError(f"cannot write {self._checkpoint}: {why}", "Free some space, or use --work.") from None
        self.save_s = monotonic() - before

    def _load(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        with torch.no_grad():
            for name, weight in trained(self.student.model):
                weight.copy_(state["weights"][name])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        (self._best, self._weights), (self.step, self.loss) = state["best"], state["latest"][:2]

    def progress(self, seconds: float) -> TrainingStep:
        """seconds: of a step, on average."""
        left = seconds * (self.plan.steps - self.step)
        return TrainingStep(self.step, self.plan.steps, self.loss, tuple(self._best), left)


def optimizers_of(model: nn.Module, lr: float) -> Optimizers:
    """Muon (Jordan et al., 2024) for matrices, AdamW for embeddings, norms and biases."""
    named = trained(model)
    matrices = [weight for name, weight in named if weight.dim() == 2 and "token_embd" not in name]
    others = [weight for name, weight in named if weight.dim() != 2 or "token_embd" in name]
    made: Optimizers = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"))
    if others:
        made.append(torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0))
    return made


def _step(student: Student, texts: Windows, optimizers: Optimizers, plan: TrainingPlan, step: int) -> float:
    """One step of training; returns its loss."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = plan.lr * plan.rate(step)
    device = device_of(student)
    with torch.autocast(device.type, torch.bfloat16):
        loss = student.loss(texts.random(BATCH, _SEED, step).to(device))
    if not math.isfinite(value := float(loss.detach())):
        raise SpecdecError("the loss is not finite", "Use a lower --lr, or other prompts.")
    loss.backward()
    torch.nn.utils.clip_grad_norm_([weight for _, weight in trained(student.model)], MAX_GRADIENT)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return value
