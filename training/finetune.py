"""The pair that `specdec demo` races: the bundled one, trained further on modules of `records.py`.

    python -m training.finetune --minutes 20        # writes profiles/demo/records/target.gguf and draft.gguf

The target learns the next token; the draft learns the target's distribution on the same texts (forward KL). Both files
are copies of the bundled ones with other weights. It takes PyTorch, as `make train` installs it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

import gguf
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_cli import SpeculativeConfig, load
from specdec_cli.training.decoder import Decoder
from specdec_cli.training.shape import Shape
from training import records

DEMO = Path(__file__).parent.parent / "profiles" / "demo"
SHAPES = {"target": Shape(6, 320, 5, 896, 4096, 1024), "draft": Shape(2, 128, 4, 352, 4096, 1024)}
RATES = {"target": 1e-3, "draft": 2e-3}
MODULES, LENGTH, BATCH = 6000, 512, 4
"""Modules to learn from, tokens of a text, texts of a step."""
WARM_UP, COOL_DOWN = 20, 0.4
"""Steps over which the learning rate rises, and the share of the time over which it falls to nothing."""


def read(path: Path, shape: Shape) -> Decoder:
    """A model of a GGUF file."""
    model = Decoder(shape)
    tensors = gguf.GGUFReader(path).tensors
    weights = {each.name: torch.tensor(gguf.dequantize(each.data, each.tensor_type)).float() for each in tensors}
    model.load_state_dict(weights)
    return model


def write(path: Path, model: Decoder) -> None:
    """Put a model's weights into a GGUF file of the same shape."""
    reader = gguf.GGUFReader(path, "r+")
    weights = model.state_dict()
    for each in reader.tensors:
        each.data[:] = gguf.quantize(weights[each.name].float().numpy(), each.tensor_type).reshape(each.data.shape)
    reader.data.flush()


def texts() -> Tensor:
    """All modules as one stream of tokens, the end of each marked."""
    rng = random.Random(7)
    with load(speculative=SpeculativeConfig(drafter="none")) as engine:
        stream = [token for _ in range(MODULES) for token in engine.tokenize(records.module(rng), raw=True)]
    return torch.tensor(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=DEMO / "records")
    chosen = parser.parse_args()
    models = {name: read(DEMO / f"{name}.gguf", shape) for name, shape in SHAPES.items()}
    target, draft = models.values()
    optimizers = {
        name: torch.optim.AdamW(model.parameters(), lr=RATES[name], betas=(0.9, 0.95), weight_decay=0.05)
        for name, model in models.items()
    }
    stream = texts()
    rng, started, step = torch.Generator().manual_seed(1), time.monotonic(), 0
    while (spent := (time.monotonic() - started) / (60 * chosen.minutes)) < 1:
        starts = torch.randint(len(stream) - LENGTH - 1, (BATCH,), generator=rng).tolist()
        batch = torch.stack([stream[start : start + LENGTH + 1] for start in starts])
        p = target.logits(target(batch[:, :-1])[-1])
        q = draft.logits(draft(batch[:, :-1])[-1])
        truth = p.detach().softmax(-1)
        losses = {
            "target": F.cross_entropy(p.flatten(0, 1), batch[:, 1:].flatten()),
            "draft": F.kl_div(q.log_softmax(-1), truth, reduction="none").sum(-1).mean(),
        }
        for name, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = RATES[name] * min(1, step / WARM_UP, (1 - spent) / COOL_DOWN)
            losses[name].backward()
            torch.nn.utils.clip_grad_norm_(models[name].parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 10 == 0:
            agreed = (p.argmax(-1) == q.argmax(-1)).float().mean().item()
            print(step, *(f"{name} {loss.item():.3f}" for name, loss in losses.items()), f"agreed {agreed:.3f}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        shutil.copyfile(DEMO / f"{name}.gguf", chosen.out / f"{name}.gguf")
        write(chosen.out / f"{name}.gguf", model)


if __name__ == "__main__":
    main()
