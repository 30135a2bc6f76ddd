"""A llama with a head, as a file: llama.cpp computes what both compute."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests import tiny
from training import mtp_export
from training.llama_rows import Reader

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from mtp_arithmetic import Pair

WIDTH, FEED_FORWARD = tiny.WIDTH, tiny.FEED_FORWARD
TEXT = [40, 41, 90, 40, 7, 200, 41, 90]


def random_head() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"eh_proj": (WIDTH, 2 * WIDTH), "layer.ffn_down": (WIDTH, FEED_FORWARD)}
    shapes |= {f"layer.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
    shapes |= {f"layer.ffn_{part}": (FEED_FORWARD, WIDTH) for part in ("gate", "up")}
    norms = ("enorm", "hnorm", "shared_head_norm", "layer.attn_norm", "layer.ffn_norm")
    head = {name: rng.normal(size=shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    head |= {name: 1 + 0.1 * rng.normal(size=WIDTH) for name in norms}
    return {f"{name}.weight": values.astype(np.float32) for name, values in head.items()}


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean() + 1e-5) * weight


def first_row(head: dict[str, np.ndarray], embedding: np.ndarray, hidden: np.ndarray, output: np.ndarray) -> np.ndarray:
    """The head's logits after one token, which attends to itself alone."""
    w = {name.removesuffix(".weight"): values for name, values in head.items()}
    x = w["eh_proj"] @ np.concatenate((normed(embedding, w["enorm"]), normed(hidden, w["hnorm"])))
    x = x + w["layer.attn_output"] @ (w["layer.attn_v"] @ normed(x, w["layer.attn_norm"]))
    y = normed(x, w["layer.ffn_norm"])
    gate = w["layer.ffn_gate"] @ y
    x = x + w["layer.ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["layer.ffn_up"] @ y))
    return output @ normed(x, w["shared_head_norm"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("head")
    target, head = tiny.write(folder / "target.gguf", "llama"), random_head()
    return target, mtp_export.write(folder / "with-head.gguf", target, head), head


def test_the_target_stays_as_it_is(files) -> None:
    target, path, _ = files
    pair, reader = Pair(path), Reader(target)
    rows = np.stack([pair.trunk.read(token, place)[0] for place, token in enumerate(TEXT)])
    expected = reader.rows(TEXT)
    reader.close()
    pair.close()
    assert np.abs(rows - expected).max() < 1e-2 * np.abs(expected).max()


def test_the_head_computes_what_it_was_trained_to(files) -> None:
    _, path, head = files
    tensors = {each.name: each.data for each in gguf.GGUFReader(path).tensors}
    hidden = np.random.default_rng(6).normal(size=WIDTH).astype(np.float32)
    expected = first_row(head, tensors["token_embd.weight"][TEXT[0]], hidden, tensors["output.weight"])
    pair = Pair(path)
    row = pair.head.read(TEXT[0], 0, hidden)[0]
    pair.close()
    assert np.linalg.norm(row - expected) < 0.03 * np.linalg.norm(expected)
