"""The bundled pair, trained further.

    python -m training.finetune --documents corpus/documents.jsonl.xz --minutes 120 --out profiles/demo

Both start from the files of --pair. The target learns the next token; the draft learns the target's distribution on the
same texts (forward KL). It needs PyTorch, which `make train` installs, and continues from --work if it is run again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_cli import SpeculativeConfig, load
from specdec_cli.gguf.reader import read_header
from specdec_cli.make_drafts.training.decoder import Decoder, shape_of
from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, rewrite
from specdec_cli.make_drafts.training.students import numbers_of
from specdec_cli.make_drafts.training.trainer import Optimizers, optimizers_of
from training import corpus

DEMO = Path(__file__).parent.parent / "profiles" / "demo"
RATES = {"target": 1.5e-3, "draft": 2e-3}
LENGTH, BATCH = 1024, 8
"""Tokens of a text, and texts of a step, which are computed one by one to fit the CPU's caches."""
MAX, HELD_OUT = 24_000_000, 200_000
"""Tokens to learn from, and to evaluate on."""
WARM_UP, COOL_DOWN = 20, 0.5
"""Steps over which the learning rate rises, and the share of the time over which it falls to zero."""
LOOK_S, SAVE_S, LOOKED = 120, 300, 16


class Stream:
    """Tokens from which windows are drawn. Each window's first token is replaced by the end-of-text token, which also
    starts prompts.
    """

    def __init__(self, path: Path) -> None:
        # torch supports few operations on uint16; int16 has the same bits, and `windows` undoes the sign.
        self._ids = torch.from_numpy(np.fromfile(path, np.int16))

    def windows(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and the tokens after them, both int64 (batch, length)."""
        ids = self._ids[starts[:, None] + torch.arange(length + 1)].long() & 0xFFFF
        inputs = ids[:, :-1].clone()
        inputs[:, 0] = 0
        return inputs, ids[:, 1:]

    def random(self, generator: torch.Generator, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Windows at random positions."""
        return self.windows(torch.randint(len(self._ids) - length, (batch,), generator=generator), length)

    def evenly(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Windows at fixed positions, spread evenly."""
        return self.windows(torch.linspace(0, len(self._ids) - length - 1, count).long(), length)


def stream(texts: Iterable[str], most: int, kept: Path) -> Stream:
    """Texts as one stream of up to `most` tokens, saved in the file `kept`."""
    if not kept.exists():
        found: list[np.ndarray] = []
        with load(speculative=SpeculativeConfig(drafter="none")) as engine:
            for text in texts:
                found.append(np.array(engine.tokenize(text, raw=True), np.uint16))
                if (most := most - found[-1].size) < 0:
                    break
        np.concatenate(found).tofile(kept)
    return Stream(kept)


def texts_of(documents: Path, part: str) -> list[str]:
    """The texts of one part of a corpus, shuffled with a fixed seed."""
    found = [document.text for document in corpus.load(documents) if document.part == part]
    random.Random(7).shuffle(found)
    return found


class Pair:
    """Both models and the state of their training. minutes: its total time."""

    def __init__(self, folder: Path, minutes: float, checkpoint: Path) -> None:
        self._files = {name: GgufWeights(folder / f"{name}.gguf") for name in RATES}
        self._minutes, self._checkpoint = minutes, checkpoint
        self.models: dict[str, Decoder] = {}
        self._optimizers: dict[str, Optimizers] = {}
        for name, file in self._files.items():
            model = self.models[name] = Decoder(replace(shape_of(read_header(file.path)), context=LENGTH))
            model.load_state_dict({each: torch.from_numpy(file.read(each)) for each in model.state_dict()})
            self._optimizers[name] = optimizers_of(model, RATES[name])
        self.step, self.seconds = 0, 0.0
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            self.step, self.seconds = state["done"]
            for name, model in self.models.items():
                model.load_state_dict(state["models"][name])
                for optimizer, kept in zip(self._optimizers[name], state["optimizers"][name], strict=True):
                    optimizer.load_state_dict(kept)

    @property
    def spent(self) -> float:
        """The share of the training time that has passed."""
        return self.seconds / (60 * self._minutes)

    def learn(self, inputs: Tensor, wanted: Tensor) -> None:
        """One step. inputs, wanted: (batch, length)."""
        before = time.monotonic()
        for number, text in enumerate(zip(inputs.split(1), wanted.split(1), strict=True)):
            with torch.autocast("cpu", torch.bfloat16):
                losses = self.losses(*text, draft=number % 2 == 0)
            (sum(losses.values()) / len(inputs)).backward()
        for name, optimizers in self._optimizers.items():
            torch.nn.utils.clip_grad_norm_(self.models[name].parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = RATES[name] * min(1, (self.step + 1) / WARM_UP, (1 - self.spent) / COOL_DOWN)
                optimizer.step()
                optimizer.zero_grad()
        self.step, self.seconds = self.step + 1, self.seconds + time.monotonic() - before

    def losses(self, inputs: Tensor, wanted: Tensor, draft: bool) -> dict[str, Tensor]:
        """Cross-entropies in nats per token: of the target against the text, and of the draft against the target."""
        log_p = self._log_p("target", inputs)
        losses = {"target": F.nll_loss(log_p, wanted.flatten())}
        if draft:
            losses["draft"] = -(log_p.detach().exp() * self._log_p("draft", inputs)).sum(-1).mean()
        return losses

    def _log_p(self, name: str, inputs: Tensor) -> Tensor:
        model = self.models[name]
        return model.logits(model(inputs)).flatten(0, 1).float().log_softmax(-1)

    def look(self, held_out: Stream) -> str:
        """The target's loss on held-out texts, in nats per token, and how often the draft agrees with it."""
        loss = agreed = 0.0
        inputs, wanted = held_out.evenly(LOOKED, LENGTH)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for row, truth in zip(inputs, wanted, strict=True):
                log_p, log_q = (self._log_p(name, row[None]) for name in RATES)
                loss += float(F.nll_loss(log_p, truth)) / LOOKED
                agreed += float((log_p.argmax(-1) == log_q.argmax(-1)).float().mean()) / LOOKED
        return f"{self.seconds / 60:.1f} min, {self.step} steps: loss {loss:.3f}, the draft agrees at {agreed:.1%}"

    def save(self) -> None:
        state = {
            "done": (self.step, self.seconds),
            "models": {name: model.state_dict() for name, model in self.models.items()},
            "optimizers": {name: [each.state_dict() for each in both] for name, both in self._optimizers.items()},
        }
        torch.save(state, new := self._checkpoint.with_suffix(".new"))
        new.replace(self._checkpoint)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in self.models.items():
            new = folder / f"{name}.new"
            rewrite(new, self._files[name], numbers_of(model), name)
            new.replace(folder / f"{name}.gguf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, required=True, help="a corpus from `training.corpus`")
    parser.add_argument("--pair", type=Path, default=DEMO, help="the folder of the files to start from")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--work", type=Path, default=Path("build/training/finetune"), help="folder for checkpoints")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    texts = stream(texts_of(chosen.documents, corpus.TRAIN), MAX, chosen.work / "train.u16")
    held_out = stream(texts_of(chosen.documents, corpus.HELD_OUT), HELD_OUT, chosen.work / "held-out.u16")
    pair = Pair(chosen.pair, chosen.minutes, chosen.work / "pair.pt")
    looked = saved = 0.0
    while pair.spent < 1:
        if not looked or time.monotonic() - looked > LOOK_S:
            print(pair.look(held_out), flush=True)
            looked = time.monotonic()
        pair.learn(*texts.random(torch.Generator().manual_seed(pair.step), BATCH, LENGTH))
        if time.monotonic() - saved > SAVE_S:
            pair.save()
            saved = time.monotonic()
    print(pair.look(held_out), flush=True)
    pair.write(chosen.out)


if __name__ == "__main__":
    main()
