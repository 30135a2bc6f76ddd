"""The whole recipe, from installed packages to two GGUF files: `python -m training --size full|small|tiny`.

Every stage leaves its results in the work folder and is passed over where they are there already, so a run that was
cut short, or that `--minutes` has ended, goes on when the same command is given again. To do a stage anew, delete
what it wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from specdec_cli.make_drafts.training.decoder import Decoder
from training import corpus, data, distill, export, sizes, tokenizer, train

ROOT = Path(__file__).parent.parent

EXIT_PAUSED = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sizes.SIZES, required=True)
    parser.add_argument("--work", type=Path, help="folder for everything made (build/training/SIZE)")
    parser.add_argument("--minutes", type=float, default=train.FOREVER, help="end this call, saved, after so long")
    parser.add_argument("--budget", type=float, help="minutes that the training of both models may take in all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute to begin with, then faster")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="other numbers of the size")
    corpus.options(parser)
    chosen = parser.parse_args()
    try:
        size = sizes.with_settings(sizes.SIZES[chosen.size], chosen.set)
    except ValueError as error:
        parser.error(str(error))
    work = chosen.work or ROOT / "build" / "training" / chosen.size
    work.mkdir(parents=True, exist_ok=True)
    try:
        make(size, work, chosen)
    except train.Paused as pause:
        print(f"paused: {pause}. The same command goes on from here.")
        sys.exit(EXIT_PAUSED)


def make(size: sizes.Size, work: Path, chosen: argparse.Namespace) -> None:
    stop_at = time.monotonic() + 60 * chosen.minutes
    device = torch.device(chosen.device)
    torch.set_float32_matmul_precision("high")

    def stage(name: str, path: Path, do: Callable[[], None]) -> None:
        if path.exists():
            return
        if time.monotonic() >= stop_at:
            raise train.Paused(f"before {name}")
        before = time.monotonic()
        do()
        print(f"{name}: {time.monotonic() - before:.1f} s, {path.stat().st_size / 1e6:.1f} MB", flush=True)

    chosen.megabytes = min(chosen.megabytes, size.megabytes)
    documents = work / "corpus" / corpus.DOCUMENTS
    stage("corpus", documents, lambda: corpus.from_options(chosen, documents.parent))
    stage("tokenizer", work / "tokenizer.json", lambda: train_tokenizer(size, documents, work / "tokenizer.json"))
    stage("tokens", work / data.HELD_OUT, lambda: data.prepare(documents, work / "tokenizer.json", work))

    texts, held_out = (data.Stream.of([work / name], device) for name in (data.TRAIN, data.HELD_OUT))
    seconds = 60 * chosen.budget if chosen.budget else train.FOREVER
    target, draft = (Decoder(shape).to(device) for shape in (size.target, size.draft))
    target.start(size.seed)
    draft.start(size.seed + 1)
    print(f"target {size.target.parameters:,} and draft {size.draft.parameters:,} parameters; {len(texts):,} tokens")
    for_target, for_draft = seconds * size.target_share, seconds * (1 - size.target_share)
    fast = chosen.compile
    stage(
        "target",
        work / "target.pt",
        lambda: train.train_target(target, size, texts, held_out, work, for_target, stop_at, fast),
    )
    load(target, work / "target.pt")
    target.requires_grad_(False)
    stage("samples", work / distill.SAMPLES, lambda: distill.write_samples(target, size, texts, work))
    samples = data.Stream.of([work / distill.SAMPLES], device)
    stage(
        "draft",
        work / "draft.pt",
        lambda: distill.train_draft(draft, target, size, texts, samples, held_out, work, for_draft, stop_at, fast),
    )
    load(draft, work / "draft.pt")
    stage("figures", work / "figures.json", lambda: figures(target, draft, size, held_out, work))
    stage("files", work / "draft.gguf", lambda: files(target, draft, size, work))


def train_tokenizer(size: sizes.Size, documents: Path, path: Path) -> None:
    """On the first documents of the training part; held-out texts are not seen."""

    def texts() -> list[str]:
        found, room = [], size.tokenizer_megabytes * 1e6
        for document in corpus.load(documents):
            if document.part == corpus.TRAIN and room > 0:
                found.append(document.text)
                room -= len(document.text)
        return found

    tokenizer.train(texts(), size.vocabulary).save(str(path))


def load(model: Decoder, path: Path) -> None:
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["weights"])


@torch.no_grad()
def figures(target: Decoder, draft: Decoder, size: sizes.Size, held_out: data.Stream, work: Path) -> None:
    """Losses, agreement and expected acceptance on held-out text, of the weights before they are rounded to Q8_0."""
    windows = max(4, min(64, len(held_out) // size.target.context))
    losses = train.exit_losses(target, size.exits, held_out, windows)
    _, wanted = held_out.evenly(windows, size.target.context)
    lengths = torch.tensor(tokenizer.byte_lengths(tokenizer.load(work / "tokenizer.json")))
    per_token = lengths[wanted.cpu()].float().mean().item()
    found = {
        "bytes_per_token": per_token,
        "nats_per_token": losses,
        "nats_per_byte": {name: loss / per_token for name, loss in losses.items()},
        "draft_nats_per_token": train.exit_losses(draft, (), held_out, windows)["last"],
        "against_target": distill.compare(target, draft, held_out, windows, size.exits),
        "size": asdict(size),
    }
    (work / "figures.json").write_text(json.dumps(found, indent=1), "utf-8")
    print(json.dumps({key: value for key, value in found.items() if key != "size"}, indent=1))


def files(target: Decoder, draft: Decoder, size: sizes.Size, work: Path) -> None:
    """target.gguf, and then draft.gguf, in Q8_0."""
    words = tokenizer.vocabulary(tokenizer.load(work / "tokenizer.json"))
    for name, model, shape in (("target", target, size.target), ("draft", draft, size.draft)):
        tokens = torch.load(work / f"{name}.pt", weights_only=True)["tokens"]
        weights: dict[str, np.ndarray] = {key: value.float().cpu().numpy() for key, value in model.state_dict().items()}
        description = (
            f"{shape.parameters / 1e6:.1f} M parameters, {tokens / 1e6:.0f} M tokens of permissively licensed Python "
            "source and documentation; made for trying speculative decoding"
        )
        export.write(work / f"{name}.gguf", weights, shape, words, f"specdec demo {name}", description)


if __name__ == "__main__":
    main()
