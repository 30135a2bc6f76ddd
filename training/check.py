"""Checks that llama.cpp computes the bundled pair as PyTorch does: `python -m training.check`, a minute on a CPU.

Stops with an error at the first failed check.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import N_BATCH
from specdec_cli.llama.placement import Placement
from specdec_cli.make_drafts.training.decoder import Decoder
from training import finetune

TEXT = Path(__file__)
TOKENS, STEPS = 128, 8
Q8_0, RESUMED = 0.05, 1e-6
"""How far apart rows may be, relative to their size: llama.cpp also rounds activations to 8 bits."""


class Reader:
    """A model in llama.cpp that reads whole texts, with one CPU thread and the context that it was trained for."""

    def __init__(self, path: Path) -> None:
        interrupt = Interrupt()
        self.model = Model(path, Placement(0), interrupt)
        self._context = LlamaContext.open(self.model, self.model.n_ctx_train, N_BATCH, 1, interrupt)

    def rows(self, ids: Sequence[int]) -> np.ndarray:
        """Logits after each token of a text of up to N_BATCH tokens, float32 (len(ids), n_vocab)."""
        self._context.rewind(0)
        return self._context.decode(ids, all_rows=True).copy()

    def close(self) -> None:
        self._context.close()
        self.model.close()


def expect(name: str, true: bool, what: str) -> None:
    print(f"{'ok  ' if true else 'FAIL'} {name}: {what}", flush=True)
    if not true:
        raise SystemExit(1)


@torch.no_grad()
def torch_rows(model: Decoder, ids: Sequence[int]) -> np.ndarray:
    return model.logits(model(torch.tensor([[*ids]])))[0].numpy()


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """The norm of the difference, relative to the norm of `exact`."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def check_files(pair: finetune.Pair, folder: Path, what: str) -> list[int]:
    """Compare the rows of a folder's files with those of the models; returns the tokens that were read."""
    ids: list[int] = []
    for name, model in pair.models.items():
        reader = Reader(folder / f"{name}.gguf")
        ids = reader.model.tokenize(TEXT.read_text("utf-8"), special=False)[: 4 * TOKENS]
        theirs, mine = reader.rows(ids[:TOKENS]), torch_rows(model, ids[:TOKENS])
        reader.close()
        off, same = distance(theirs, mine), (theirs.argmax(-1) == mine.argmax(-1)).mean()
        expect(f"{what}, {name}", off < Q8_0, f"off by {off:.1e}; greedy the same at {same:.0%}")
    return ids


@torch.no_grad()
def check_wrong_positions(model: Decoder, ids: Sequence[int]) -> None:
    """Check that wrong rotary positions, which pair the halves of a head, would be noticed."""
    exact, shape, before = torch_rows(model, ids), model.shape, copy.deepcopy(model.state_dict())
    for wrong in ("attn_q", "attn_k"):
        for name, weight in model.named_parameters():
            if wrong in name:
                weight.copy_(weight.view(shape.heads, shape.size // 2, 2, -1).transpose(1, 2).reshape(weight.shape))
        off = distance(torch_rows(model, ids), exact)
        model.load_state_dict(before)
        expect(f"a wrong {wrong} would show", off > 2 * Q8_0, f"off by {off:.1e}")


def check_training(ids: Sequence[int], folder: Path) -> None:
    """Check that both models learn, that a resumed run gives the same weights, and that files contain these weights."""
    text = folder / "text.u16"
    np.array(ids, np.uint16).tofile(text)
    inputs, wanted = finetune.Stream(text).evenly(2, TOKENS)
    checkpoint = folder / "pair.pt"
    whole = finetune.Pair(finetune.DEMO, 1e6, folder / "none.pt")
    before = {name: loss.item() for name, loss in whole.losses(inputs, wanted, draft=True).items()}
    for _ in range(STEPS):
        whole.learn(inputs, wanted)
    for steps in (STEPS // 2, STEPS - STEPS // 2):
        resumed = finetune.Pair(finetune.DEMO, 1e6, checkpoint)
        for _ in range(steps):
            resumed.learn(inputs, wanted)
        resumed.save()
    after = {name: loss.item() for name, loss in whole.losses(inputs, wanted, draft=True).items()}
    expect("learning", all(after[name] < before[name] for name in before), f"losses {before} to {after}")
    off = max(distance(torch_rows(resumed.models[name], ids), torch_rows(whole.models[name], ids)) for name in before)
    expect("resuming", off < RESUMED, f"a resumed run is off by {off:.1e}")
    whole.write(folder / "out")
    check_files(whole, folder / "out", "written")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pair = finetune.Pair(finetune.DEMO, 1e6, Path(folder) / "none.pt")
        ids = check_files(pair, finetune.DEMO, "logits")
        check_wrong_positions(pair.models["target"], ids[:TOKENS])
        check_training(ids, Path(folder))
        pair.learn(*torch.zeros(2, 1, finetune.LENGTH, dtype=torch.long))  # a text of the full length


if __name__ == "__main__":
    main()
