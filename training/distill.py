"""The draft's training: the target's own distribution, on the corpus and on what the target writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specdec_cli.make_drafts.training.decoder import Cache, Decoder
from training.data import Stream
from training.sizes import Size
from training.train import Plan, autocast, compiled, generator, run

SAMPLES = "samples.u16"
PROMPT = 32
"""Tokens of the corpus that each of the target's samples begins with."""
TEMPERATURES = (0.0, 0.6, 0.8, 1.0)
"""Those that users ask for; each sample is written at one of them."""


@torch.no_grad()
def write_samples(target: Decoder, size: Size, data: Stream, folder: Path) -> None:
    """Texts by the target, `sample_length` tokens each with their prompts, `samples` tokens in all."""
    device = next(target.parameters()).device
    rounds = -(-size.samples // (size.sample_batch * size.sample_length))
    written = []
    for number in range(rounds):
        dice = generator(size.seed, 1 << 20, number)
        prompts, _ = data.random(dice, size.sample_batch, PROMPT)
        heat = torch.tensor(TEMPERATURES)[torch.randint(len(TEMPERATURES), (size.sample_batch,), generator=dice)]
        torch.manual_seed(size.seed + number)  # of the device's own random numbers
        written.append(sample(target, prompts, size.sample_length, heat.to(device)).cpu().numpy().astype(np.uint16))
    np.concatenate(written).reshape(-1).tofile(folder / SAMPLES)


@torch.no_grad()
def sample(model: Decoder, prompts: Tensor, length: int, temperatures: Tensor) -> Tensor:
    """Prompts (batch, any) written on to `length` tokens: (batch, length). temperatures: (batch,); 0 is greedy."""
    batch, dtype = len(prompts), torch.bfloat16 if prompts.is_cuda else torch.float32
    cache = Cache(model.shape, batch, length, prompts.device, dtype)
    cold = (temperatures == 0)[:, None]
    heat = temperatures.clamp(min=0.01)[:, None]
    ids, last = prompts, prompts
    with autocast(prompts.device):
        while ids.shape[1] < length:
            logits = model.logits(model(last, cache=cache)[-1][:, -1]).float()
            # The largest of logits with Gumbel noise is a sample of their softmax.
            noise = -torch.empty_like(logits).exponential_().clamp(min=1e-20).log()
            last = torch.where(cold, logits, logits / heat + noise).argmax(-1, keepdim=True)
            ids = torch.cat((ids, last), 1)
    return ids


def divergence(p_logits: Tensor, q_logits: Tensor, variation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(1 - v) KL(p || q) + v TV(p, q), with the expected acceptance and the greedy agreement, means over all rows.

    Rejection sampling accepts with probability sum min(p, q) = 1 - TV(p, q), so total variation is what counts; but
    where q is far from p its gradient is faint, and the forward KL leads there (DistillSpec, arXiv 2310.08461).
    p_logits, q_logits: (..., vocabulary). variation: v, a scalar.
    """
    log_p, log_q = p_logits.float().log_softmax(-1), q_logits.float().log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    forward = (p * (log_p - log_q)).sum(-1).mean()
    distance = 0.5 * (p - q).abs().sum(-1).mean()
    agreement = (log_p.argmax(-1) == log_q.argmax(-1)).float().mean()
    return (1 - variation) * forward + variation * distance, 1 - distance.detach(), agreement


def train_draft(
    draft: Decoder,
    target: Decoder,
    size: Size,
    data: Stream,
    samples: Stream,
    held_out: Stream,
    folder: Path,
    seconds: float,
    stop_at: float,
    fast: bool,
) -> None:
    """Distillation. The share of total variation in the loss grows from none to `variation` over the budget."""
    device = next(draft.parameters()).device
    length = draft.shape.context
    plan = Plan(size.draft_tokens, seconds, size.batch, size.micro_batch, size.draft_lr, size.seed)
    # As many windows of a micro-batch as are the samples' share; what is left over falls to them by chance.
    own_exactly = size.on_samples * plan.micro_batch
    student, teacher = compiled(draft, fast), compiled(target, fast)

    def head(hidden_p: Tensor, hidden_q: Tensor, variation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return divergence(target.logits(hidden_p), draft.logits(hidden_q), variation)

    head = compiled(head, fast)

    def loss_of(step: int, micro: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        dice = generator(size.seed, 2, step, micro)
        own = int(own_exactly + torch.rand((), generator=dice).item())
        ids = torch.cat(
            (
                data.random(dice, plan.micro_batch - own, length)[0],
                samples.random(dice, own, length)[0],
            )
        )
        variation = torch.tensor(size.variation * progress, device=device)
        with autocast(device):
            with torch.no_grad():
                hidden_p = teacher(ids)[-1]
            loss, accepted, agreed = head(hidden_p, student(ids)[-1], variation)
        return loss, {"accepted": accepted, "agreed": agreed.detach()}

    def check() -> dict[str, float]:
        return {f"held_out_{key}": value for key, value in compare(target, draft, held_out).items()}

    run("draft", draft, plan, folder, stop_at, loss_of, check)


@torch.no_grad()
def compare(
    target: Decoder, draft: Decoder, text: Stream, windows: int = 16, layers: Sequence[int] = ()
) -> dict[str, float]:
    """Expected acceptance at temperature 1 and greedy agreement on a text: of the draft, and of the target's own first
    layers as drafts.
    """
    ids, _ = text.evenly(windows, target.shape.context)
    total: dict[str, float] = {}
    none = torch.zeros((), device=ids.device)
    with autocast(ids.device):
        for row in range(windows):
            *early, last = target(ids[row : row + 1], layers)
            p = target.logits(last)
            others = {f"_first_{n}": target.logits(hidden) for n, hidden in zip(layers, early, strict=True)}
            for name, q in {"": draft.logits(draft(ids[row : row + 1])[-1]), **others}.items():
                _, accepted, agreed = divergence(p, q, none)
                for key, value in ((f"accepted{name}", accepted), (f"agreed{name}", agreed)):
                    total[key] = total.get(key, 0.0) + value.item() / windows
    return total
