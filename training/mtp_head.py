"""A head that predicts one token more (multi-token prediction, arXiv 2404.19737), for the bundled target.

    python -m training.mtp_head --documents documents.jsonl.xz --minutes 15 --out target-mtp.gguf

The target stays as it is. The head is one layer of the target's kind: it reads the target's last, normed hidden row of
the token before and the embedding of a token, and is trained to give what the target gives after that token. It shares
the target's embedding and output matrix. As a draft goes on, the head reads its own rows in place of the target's; the
training does the same for STEPS tokens. `mtp_export` writes the file that llama.cpp reads.

`documents` is what `python -m training.corpus` gathers. It takes PyTorch, as `make train` installs it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from training import corpus, distill, mtp_export
from training.data import Stream
from training.finetune import DEMO, SHAPES, read
from training.model import Layer, Llama, Norm, turn
from training.sizes import Shape

STEPS, STEP_WEIGHTS = 3, (1.0, 0.8, 0.6)
"""Tokens of a draft that training goes through, and their parts in the loss."""
LENGTH, BATCH = 256, 4
"""Tokens of a text, texts of a step."""
RATE, WARM_UP, COOL_DOWN, ONE_TOKEN = 3e-3, 20, 0.5, 0.4
"""The learning rate, the steps over which it rises, the share of the time over which it falls to nothing, and the share
at the beginning in which drafts are of one token.
"""
SAMPLE_BATCH, PROMPT = 64, 32
"""Texts that the target writes at once, and the tokens of the corpus that each begins with."""
CPU = torch.device("cpu")


class Head(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.enorm = Norm(shape.width, shape.eps)
        self.hnorm = Norm(shape.width, shape.eps)
        self.eh_proj = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layer = Layer(shape)
        self.shared_head_norm = Norm(shape.width, shape.eps)

    def start(self, target: Llama) -> None:
        """Begin with the target's last layer, which reads the mean of both inputs."""
        self.layer.load_state_dict(target.blk[-1].state_dict())
        self.shared_head_norm.load_state_dict(target.output_norm.state_dict())
        half = 0.5 * torch.eye(target.shape.width)
        self.eh_proj.weight.data = torch.cat((half, half), 1)

    def forward(self, target: Llama, ids: Tensor, hidden: Tensor, steps: int) -> list[Tensor]:
        """The head's rows at so many tokens of a draft, (batch, length, width) each. Row t of step n is what a draft
        gives that has read token t as its n-th; so the first n rows of a step mean nothing.

        ids: (batch, length). hidden: the target's normed rows, (batch, length, width).
        """
        embedded = self.enorm(target.token_embd(ids))
        keys: list[Tensor] = []
        values: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(steps):
            before = F.pad(hidden, (0, 0, 1, 0))[:, :-1]  # of the token before; the first token has none
            x = self.eh_proj(torch.cat((embedded, self.hnorm(before)), -1))
            x = x + self.layer.attn_output(self._attend(target, self.layer.attn_norm(x), keys, values))
            y = self.layer.ffn_norm(x)
            x = x + self.layer.ffn_down(F.silu(self.layer.ffn_gate(y)) * self.layer.ffn_up(y))
            hidden = self.shared_head_norm(x)
            rows.append(hidden)
        return rows

    def _attend(self, target: Llama, x: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Attention of a step: to the first step's keys up to where the draft began, then to one of each step."""
        batch, length, width = x.shape
        heads = self.layer.heads
        q, k, v = (
            part(x).view(batch, length, heads, width // heads).transpose(1, 2)
            for part in (self.layer.attn_q, self.layer.attn_k, self.layer.attn_v)
        )
        q, k = (turn(part, target.cos[:length], target.sin[:length]) for part in (q, k))
        keys.append(k)
        values.append(v)
        step = len(keys) - 1
        if step == 0:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return out.transpose(1, 2).reshape(batch, length, width)
        text = torch.ones(length, length, dtype=torch.bool).tril(-step)
        scores = (q @ keys[0].transpose(-1, -2)).masked_fill(~text, float("-inf"))
        drafted_keys, drafted_values = (
            [part.roll(step - number, 2) for number, part in enumerate(parts) if number] for parts in (keys, values)
        )
        own = [(q * part).sum(-1, keepdim=True) for part in drafted_keys]
        weights = (torch.cat((scores, *own), -1).float() * (width // heads) ** -0.5).softmax(-1).to(v.dtype)
        out = weights[..., :length] @ values[0]
        for number, part in enumerate(drafted_values):
            out = out + weights[..., length + number, None] * part
        return out.transpose(1, 2).reshape(batch, length, width)


def tokens(documents: Path, part: str) -> np.ndarray:
    """All documents of a part of the corpus, each after an END."""
    model = Model(DEMO / "target.gguf", Placement(0), Interrupt())
    ids = [model.tokenize(each.text, special=False) for each in corpus.load(documents) if each.part == part]
    model.close()
    return np.concatenate([np.array(each, np.uint16) for each in ids])


@torch.no_grad()
def write_samples(target: Llama, data: Stream, minutes: float, rng: torch.Generator) -> np.ndarray:
    """What the target writes after beginnings from the corpus, half of it greedily: (texts * LENGTH,)."""
    until, texts = time.monotonic() + 60 * minutes, []
    temperatures = torch.tensor([0.0, 0.8]).repeat(SAMPLE_BATCH // 2)
    while time.monotonic() < until:
        prompts, _ = data.random(rng, SAMPLE_BATCH, PROMPT)
        texts.append(distill.sample(target, prompts, LENGTH, temperatures).cpu().numpy().astype(np.uint16).reshape(-1))
    return np.concatenate(texts)


def losses(target: Llama, head: Head, ids: Tensor, steps: int) -> tuple[Tensor, list[float]]:
    """The loss: cross-entropy with the target's distributions; and of each step, how often the best token agrees."""
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            hidden = target(ids)[-1]
            truth = target.logits(hidden).float().softmax(-1)
        total, agreed = torch.zeros(()), []
        for step, (rows, weight) in enumerate(zip(head(target, ids, hidden, steps), STEP_WEIGHTS, strict=False)):
            logits, p = target.logits(rows[:, step:]).float(), truth[:, step:]
            total = total + weight * F.cross_entropy(logits.flatten(0, 1), p.flatten(0, 1))
            agreed.append((logits.argmax(-1) == p.argmax(-1)).float().mean().item())
    return total, agreed


def train(target: Llama, head: Head, streams: list[Stream], held_out: Stream, minutes: float, one_token: float) -> None:
    """Train for so long; the streams take turns. one_token: ONE_TOKEN, or 0 for a head that is trained already."""
    matrices = [weight for weight in head.parameters() if weight.dim() == 2]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([weight for weight in head.parameters() if weight.dim() == 1], lr=RATE, weight_decay=0.0),
    ]
    rng, started, step = torch.Generator().manual_seed(1), time.monotonic(), 0
    while (spent := (time.monotonic() - started) / (60 * minutes)) < 1:
        ids, _ = streams[step % len(streams)].random(rng, BATCH, LENGTH)
        loss, agreed = losses(target, head, ids, 1 if spent < one_token else STEPS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_UP, (1 - spent) / COOL_DOWN)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            print(step, f"{60 * minutes * spent:.0f} s, loss {loss.item():.3f}, agreed", _shares(agreed), flush=True)
    with torch.no_grad():
        print("on held-out text, agreed", _shares(losses(target, head, held_out.evenly(64, LENGTH)[0], STEPS)[1]))


def _shares(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0, help="of training")
    parser.add_argument("--sample-minutes", type=float, default=2.0, help="in which the target writes texts to learn")
    parser.add_argument("--head", type=Path, help="weights of a head to begin with, and to write afterwards")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    target = read(DEMO / "target.gguf", SHAPES["target"]).requires_grad_(False)
    head = Head(target.shape)
    head.start(target)
    trained = chosen.head is not None and chosen.head.exists()
    if trained:
        head.load_state_dict(torch.load(chosen.head))
    train_part, held_out = (Stream(tokens(chosen.documents, part), CPU) for part in (corpus.TRAIN, corpus.HELD_OUT))
    streams = [train_part]
    if chosen.sample_minutes:
        rng = torch.Generator().manual_seed(2)
        streams.append(Stream(write_samples(target, train_part, chosen.sample_minutes, rng), CPU))
    print(*(f"{len(stream):,} tokens" for stream in streams), flush=True)
    train(target, head, streams, held_out, chosen.minutes, 0.0 if trained else ONE_TOKEN)
    if chosen.head:
        torch.save(head.state_dict(), chosen.head)
    weights = {name: weight.numpy() for name, weight in head.state_dict().items()}
    mtp_export.write(chosen.out, DEMO / "target.gguf", weights)


if __name__ == "__main__":
    main()
