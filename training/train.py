"""The training loop, which can be stopped and taken up again, and the target's training with early exits."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_cli.make_drafts.training.decoder import Decoder, layer_dropout
from training.data import Stream
from training.sizes import Size

WARM_UP, COOL_DOWN = 0.02, 0.3
"""The learning rate rises over a share of the tokens, stays, and falls to nothing in a straight line over a share of
whichever budget ends first (arXiv 2405.18392). Time does not count for the rise: compiling takes some at once."""
WEIGHT_DECAY = 0.1
LOG_S, CHECK_S = 5.0, 30.0
"""Seconds between log lines, and between looks at the held-out loss."""
CHECKPOINT_S = 240.0
FOREVER = 1e9
"""Seconds of a budget that is none."""

Loss = Callable[[int, int, float], tuple[Tensor, dict[str, Tensor]]]
"""Of step, micro-batch and the share of the budget that is used up: the loss, and further figures to log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """tokens and seconds: budgets, of which the one that is nearer to its end sets the learning rate."""

    tokens: int
    seconds: float
    batch: int
    micro_batch: int
    lr: float
    seed: int

    def progress(self, tokens: int, seconds: float) -> float:
        return min(1.0, max(tokens / self.tokens, seconds / self.seconds))


def rate(plan: Plan, tokens: int, seconds: float) -> float:
    """The learning rate after so much, as a share of the highest."""
    risen = (tokens + plan.batch) / (WARM_UP * plan.tokens)
    return min(1.0, risen, (1.0 - plan.progress(tokens, seconds)) / COOL_DOWN)


class Paused(Exception):
    """The call's time is over; everything is saved, and the next call goes on."""


def optimizer_of(model: Decoder, plan: Plan) -> torch.optim.AdamW:
    """AdamW; norms do not decay."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


class Journal:
    """A line of figures every few seconds, on the terminal and in NAME.log.jsonl."""

    def __init__(self, name: str, folder: Path, tokens: int) -> None:
        self._name = name
        self._file = (folder / f"{name}.log.jsonl").open("a")
        self._lap, self._tokens = time.monotonic(), tokens

    def due(self) -> bool:
        return time.monotonic() - self._lap >= LOG_S

    def write(self, tokens: int, **figures: float) -> None:
        now = time.monotonic()
        speed = (tokens - self._tokens) / max(now - self._lap, 1e-9)
        line = {"tokens": tokens, "tokens_per_s": round(speed), **{k: float(f"{v:.4g}") for k, v in figures.items()}}
        print(self._name, " ".join(f"{key} {value}" for key, value in line.items()), flush=True)
        print(json.dumps(line), file=self._file, flush=True)
        self._lap, self._tokens = time.monotonic(), tokens


def run(
    name: str,
    model: Decoder,
    plan: Plan,
    folder: Path,
    stop_at: float,
    loss_of: Loss,
    check: Callable[[], dict[str, float]],
) -> None:
    """Train to the end of the budget and write NAME.pt, or to `stop_at` (time.monotonic) and raise Paused.

    loss_of draws its data by step, so that what is seen does not depend on where training was interrupted.
    check: figures on held-out text, computed from time to time.
    """
    device = next(model.parameters()).device
    optimizer = optimizer_of(model, plan)
    saved = folder / f"{name}.checkpoint.pt"
    done = {"step": 0, "tokens": 0, "spent": 0.0}
    if saved.exists():
        state = torch.load(saved, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = {key: state[key] for key in done}
        print(f"{name}: going on after step {done['step']}, {done['tokens'] / 1e6:.1f} M tokens, {done['spent']:.0f} s")

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **done}
        torch.save(state, saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)

    journal = Journal(name, folder, done["tokens"])
    now = checked = kept = time.monotonic()
    before, micros = now - done["spent"], plan.batch // plan.micro_batch
    figures: dict[str, float] = {}
    while (progress := plan.progress(done["tokens"], done["spent"])) < 1:
        for group in optimizer.param_groups:
            group["lr"] = plan.lr * rate(plan, done["tokens"], done["spent"])
        for micro in range(micros):
            loss, more = loss_of(done["step"], micro, progress)
            (loss / micros).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda" and done["step"] % 10 == 0:
            torch.cuda.synchronize()  # else the clock would run ahead of the work
        now = time.monotonic()
        done = {
            "step": done["step"] + 1,
            "tokens": done["tokens"] + plan.batch * model.shape.context,
            "spent": now - before,
        }
        if journal.due():
            if not figures or now - checked >= CHECK_S:
                figures, checked = check(), now
            seen = {key: value.item() for key, value in {"loss": loss, "norm": norm, **more}.items()}
            journal.write(done["tokens"], **seen, lr=optimizer.param_groups[0]["lr"], spent=done["spent"], **figures)
            if not math.isfinite(seen["loss"]):
                raise ArithmeticError(f"the loss of {name} is no number any more: give a lower learning rate")
        if now - kept >= CHECKPOINT_S or now >= stop_at:
            save()
            kept = now
        if now >= stop_at and plan.progress(done["tokens"], done["spent"]) < 1:
            raise Paused(f"{name} after {done['tokens'] / 1e6:.1f} M tokens")
    journal.write(done["tokens"], spent=done["spent"], **check())
    weights = {key: value.detach().float().cpu() for key, value in model.state_dict().items()}
    torch.save({"weights": weights, **done}, saved.with_suffix(".new"))
    saved.with_suffix(".new").replace(folder / f"{name}.pt")
    saved.unlink(missing_ok=True)


def generator(*numbers: int) -> torch.Generator:
    """Random numbers on the CPU, the same for the same numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(seed)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU; a CPU computes in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def compiled(function: Callable, wanted: bool) -> Callable:
    """The function through torch.compile if that is wanted and works here, else as it is."""
    if not wanted:
        return function
    fast, slow = torch.compile(function, dynamic=False), function
    chosen = [fast]

    def call(*args: object, **named: object) -> object:
        try:
            return chosen[0](*args, **named)
        except Exception as error:  # foreign code: whatever the compiler trips over
            if chosen[0] is slow:
                raise
            print(f"torch.compile failed ({type(error).__name__}: {str(error)[:200]}); going on without it")
            chosen[0] = slow
            return slow(*args, **named)

    return call


def train_target(
    model: Decoder, size: Size, data: Stream, held_out: Stream, folder: Path, seconds: float, stop_at: float, fast: bool
) -> None:
    """Next-token loss on the last layer, and on one early exit at a time in turn (LayerSkip, arXiv 2404.16710).

    Simpler than the paper's curriculum: every exit has the same weight, and only the exits that a draft could be
    cut at are trained.
    """
    shape, device = model.shape, next(model.parameters()).device
    plan = Plan(size.target_tokens, seconds, size.batch, size.micro_batch, size.target_lr, size.seed)
    exits = size.exits if size.exit_weight > 0 else ()
    trunk = compiled(model, fast)

    def head(hidden: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(model.logits(hidden).float().flatten(0, 1), wanted.flatten())

    head = compiled(head, fast)

    def loss_of(step: int, micro: int, _: float) -> tuple[Tensor, dict[str, Tensor]]:
        dice = generator(size.seed, step, micro)
        ids, wanted = data.random(dice, plan.micro_batch, shape.context)
        keep = layer_dropout(shape, size.skip, plan.micro_batch, dice).to(device) if exits else None
        with autocast(device):
            hidden = trunk(ids, exits, keep)
            last = head(hidden[-1], wanted)
            if not exits:
                return last, {}
            turn = step % len(exits)
            early = head(hidden[turn], wanted)
        loss = (1 - size.exit_weight) * last + size.exit_weight * early
        return loss, {"last": last.detach(), f"exit_{exits[turn]}": early.detach()}

    def check() -> dict[str, float]:
        return {f"held_out_{name}": value for name, value in exit_losses(model, size.exits, held_out).items()}

    run("target", model, plan, folder, stop_at, loss_of, check)


@torch.no_grad()
def exit_losses(model: Decoder, exits: Sequence[int], held_out: Stream, windows: int = 16) -> dict[str, float]:
    """Nats per token on held-out windows, after each exit and after the last layer."""
    ids, wanted = held_out.evenly(windows, model.shape.context)
    names = [*(f"exit_{number}" for number in exits), "last"]
    total = dict.fromkeys(names, 0.0)
    with autocast(ids.device):
        for row in range(windows):
            for name, hidden in zip(names, model(ids[row : row + 1], exits), strict=True):
                logits = model.logits(hidden).float()
                total[name] += F.cross_entropy(logits.flatten(0, 1), wanted[row]).item() / windows
    return total
