"""A pair of GGUF files as llama.cpp runs them, and two pairs side by side.

    python -m training.evaluate --pair OLD/target.gguf OLD/draft.gguf --pair NEW/target.gguf NEW/draft.gguf \
        --documents build/training/full/corpus/documents.jsonl.xz [--first-layers 2 4] [--json FILE]

On held-out documents: the target's loss, in nats per byte because tokenizers differ; how often the draft's likeliest
token is the target's, and the acceptance to be expected at temperature 1, sum min(p, q). On the prompts of the
`python` suite: acceptance by category, from `specdec compare`. `--first-layers` cuts the target off after so many
layers and looks at that as a draft, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training import corpus
from training.llama_rows import Reader

TEMPERATURES = (0.0, 0.8)
_OF_DRAFTS = ("draft_nats_per_byte", "agreement", "expected_acceptance")


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def on_texts(target: Path, draft: Path, texts: Sequence[str]) -> dict[str, float]:
    """Loss of the target, agreement and expected acceptance of the draft, over all tokens of all texts.

    Raises ValueError if a text takes more tokens than the target was trained for.
    """
    big, small = Reader(target), Reader(draft)
    nats = small_nats = agreed = accepted = 0.0
    tokens = size = 0
    for text in texts:
        ids = big.model.tokenize(text, special=False)
        if len(ids) > big.model.n_ctx_train:
            raise ValueError(f"a text takes {len(ids)} tokens, more than the context of {target}: give fewer --bytes")
        p, q = log_softmax(big.rows(ids)), log_softmax(small.rows(ids))
        places = np.arange(len(ids) - 1)
        nats -= p[places, ids[1:]].sum()
        small_nats -= q[places, ids[1:]].sum()
        agreed += (p.argmax(-1) == q.argmax(-1))[:-1].sum()
        accepted += np.minimum(np.exp(p), np.exp(q)).sum(-1)[:-1].sum()
        tokens += len(ids) - 1
        size += len(text.encode("utf-8"))
    big.close()
    small.close()
    return {
        "tokens": tokens,
        "bytes_per_token": size / tokens,
        "nats_per_token": nats / tokens,
        "nats_per_byte": nats / size,
        "draft_nats_per_byte": small_nats / size,
        "agreement": agreed / tokens,
        "expected_acceptance": accepted / tokens,
    }


def on_prompts(
    target: Path, draft: Path, temperature: float, length: int, tokens: int, limit: int | None
) -> dict[str, dict[str, float]]:
    """Acceptance rate and tokens per step by category of the python suite, drafting `length` tokens each time."""
    arm = f"k={length},temp={temperature}"
    given = ["--target", str(target), "--draft", str(draft), "--prompts", "python", "--seed", "1", "--repeat", "1"]
    more = ["-n", str(tokens), "--vs", arm, "--json", *(["--per-category", str(limit)] if limit else [])]
    command = [sys.executable, "-m", "specdec_cli", "compare", *given, *more]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    name = next(
        row["name"]
        for row in found["arms"]
        if row["name"] != row["baseline"] and row["settings"]["draft_tokens"] == length
    )
    return {
        row["category"]: {"acceptance": row["acceptance_rate"], "tokens_per_step": row["tokens_per_step"]}
        for row in found["summaries"]
        if row["arm"] == name
    }


def cut(target: Path, layers: int, folder: Path) -> Path:
    """The target's first layers as a model of their own."""
    out = folder / f"first-{layers}.gguf"
    keep = "0" if layers == 1 else f"0-{layers - 1}"
    command = [
        sys.executable,
        "-m",
        "specdec_cli",
        "draft",
        "prune",
        str(target),
        "--keep-layers",
        keep,
        "-o",
        str(out),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out


def evaluate(target: Path, draft: Path, texts: Sequence[str], chosen: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"held_out": on_texts(target, draft, texts)}
    with tempfile.TemporaryDirectory() as folder:
        for layers in chosen.first_layers:
            early = on_texts(target, cut(target, layers, Path(folder)), texts)
            found[f"first_{layers}_layers"] = {key: early[key] for key in _OF_DRAFTS}
    if chosen.tokens:
        for temperature in TEMPERATURES:
            rows = on_prompts(target, draft, temperature, chosen.draft_tokens, chosen.tokens, chosen.per_category)
            found[f"python_suite_temp_{temperature}"] = rows
    return found


def table(names: Sequence[str], found: Sequence[dict[str, Any]]) -> str:
    """All figures as Markdown, a column for each pair."""
    rows: dict[str, list[str]] = {}
    for column, pair in enumerate(found):
        for part, figures in pair.items():
            for key, value in figures.items():
                shown = value if isinstance(value, dict) else {"": value}
                for inner, number in shown.items():
                    row = rows.setdefault(f"{part} {key} {inner}".strip(), ["" for _ in found])
                    row[column] = f"{number:,.3f}" if isinstance(number, float) else str(number)
    head = f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}\n"
    return head + "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("--pair", type=Path, nargs=2, action="append", required=True, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl.xz with held-out documents")
    parser.add_argument("--pieces", type=int, default=100, help="held-out documents to read at most")
    parser.add_argument("--bytes", type=int, default=1500, help="of each, from its beginning")
    parser.add_argument("--first-layers", type=int, nargs="*", default=[], help="cut the last pair's target so, too")
    parser.add_argument("-k", "--draft-tokens", type=int, default=4)
    parser.add_argument("-n", "--tokens", type=int, default=64, help="of each answer; 0: no prompts")
    parser.add_argument("--per-category", type=int, help="prompts of each category at most")
    parser.add_argument("--json", type=Path, help="write everything there")
    chosen = parser.parse_args()
    held_out = [d.text for d in corpus.load(chosen.documents) if d.part == corpus.HELD_OUT]
    texts = [text.encode("utf-8")[: chosen.bytes].decode("utf-8", "ignore") for text in held_out[: chosen.pieces]]
    found, layers = [], chosen.first_layers
    for target, draft in chosen.pair:
        chosen.first_layers = layers if (target, draft) == tuple(chosen.pair[-1]) else []
        found.append(evaluate(target, draft, texts, chosen))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1), "utf-8")
    print(table([f"{target.parent.name}/{target.stem}" for target, _ in chosen.pair], found))


if __name__ == "__main__":
    main()
