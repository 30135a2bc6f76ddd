"""The bundled pair, trained further.

    python -m training.finetune --documents corpus/documents.jsonl.xz --minutes 120 --out profiles/demo

Both begin with the files of --pair. The target learns the next token; the draft learns the target's distribution on
the same texts (forward KL). It takes PyTorch, as `make train` installs it, and goes on from --work when given again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable
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
"""Tokens of a text, texts of a step, which are computed one by one to stay near the cores."""
MOST, HELD_OUT = 24_000_000, 200_000
"""Tokens to learn from, and to look at."""
WARM_UP, COOL_DOWN = 20, 0.5
"""Steps over which the learning rate rises, and the share of the time over which it falls to nothing."""
LOOK_S, SAVE_S, LOOKED = 120, 300, 16


class Stream:
    """Tokens of which windows are drawn. Their first token is replaced by the end of a text, which begins a prompt."""

    def __init__(self, path: Path) -> None:
        # torch computes little with uint16; as int16 the bits are the same, and `windows` undoes the sign.
        self._ids = torch.from_numpy(np.fromfile(path, np.int16))

    def windows(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and what follows each, int64 (batch, length) both."""
        ids = self._ids[starts[:, None] + torch.arange(length + 1)].long() & 0xFFFF
        inputs = ids[:, :-1].clone()
        inputs[:, 0] = 0
        return inputs, ids[:, 1:]

    def random(self, generator: torch.Generator, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Windows that begin at random places."""
        return self.windows(torch.randint(len(self._ids) - length, (batch,), generator=generator), length)

    def evenly(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """The same windows every time, spread over the whole."""
        return self.windows(torch.linspace(0, len(self._ids) - length - 1, count).long(), length)


def stream(texts: Iterable[str], most: int, kept: Path) -> Stream:
    """Texts as one stream of tokens, the end of each marked, which is kept in a file."""
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
    """The texts of one part of a corpus, in an order that is always the same."""
    found = [document.text for document in corpus.load(documents) if document.part == part]
    random.Random(7).shuffle(found)
    return found


class Pair:
    """Both models, and how far their training is. minutes: that it takes in all."""

    def __init__(self, folder: Path, minutes: float, checkpoint: Path) -> None:
        self._files = {name: GgufWeights(folder / f"{name}.gguf") for name in RATES}
        self._minutes, self._checkpoint = minutes, checkpoint
        self.models: dict[str, Decoder] = {}
        self._optimizers: dict[str, Optimizers] = {}
        for name, file in self._files.items():
            model = self.models[name] = Decoder(shape_of(read_header(file.path)))
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
        """The share of its time."""
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
        """Cross-entropies in nats a token: of the target with the text; of the draft with the target."""
        log_p = self._log_p("target", inputs)
        losses = {"target": F.nll_loss(log_p, wanted.flatten())}
        if draft:
            losses["draft"] = -(log_p.detach().exp() * self._log_p("draft", inputs)).sum(-1).mean()
        return losses

    def _log_p(self, name: str, inputs: Tensor) -> Tensor:
        model = self.models[name]
        return model.logits(model(inputs)).flatten(0, 1).float().log_softmax(-1)

    def look(self, held_out: Stream) -> str:
        """What the target loses on texts that are not learnt from, in nats a token, and how often the draft agrees."""
        loss = agreed = 0.0
        inputs, wanted = held_out.evenly(LOOKED, LENGTH)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for row, truth in zip(inputs, wanted, strict=True):
                log_p, log_q = (self._log_p(name, row[None]) for name in RATES)
                loss += float(F.nll_loss(log_p, truth)) / LOOKED
                agreed += float((log_p.argmax(-1) == log_q.argmax(-1)).float().mean()) / LOOKED
        return f"{self.seconds / 60:.1f} min, {self.step} steps: loss {loss:.3f}, the draft agrees with {agreed:.3f}"

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
    parser.add_argument("--documents", type=Path, required=True, help="a corpus of `training.corpus`")
    parser.add_argument("--pair", type=Path, default=DEMO, help="the folder whose files it begins with")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--work", type=Path, default=Path("build/training/finetune"), help="for what it goes on from")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    texts = stream(texts_of(chosen.documents, corpus.TRAIN), MOST, chosen.work / "train.u16")
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
