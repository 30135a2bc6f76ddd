"""What a short memory costs a draft model: agreement with the target, and seconds a pass, after a long text.

    python -m benchmarks.short_memory TARGET.gguf DRAFT.gguf TEXT... [--tokens 8192] [--window 1024] [-n 128]

Each text is a file, of which the first tokens are read. The target goes on with it greedily; then the draft model reads
the same tokens one by one, once with all of the text in its cache and once with a window, and says what it would have
proposed for each. Seconds are medians of passes over one token, at the end of the text and, for comparison, with the
window after a text that it holds whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from specdec_cli.decoding.types import DraftModel
from specdec_cli.drafters.short_memory import ShortMemory
from specdec_cli.engine.model_loading import load_model
from specdec_cli.llama import host
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("-n", type=int, default=128)
    given = parser.parse_args()
    target, draft = (load_model(path, -1, Interrupt()) for path in (given.target, given.draft))
    shared = min(target.n_vocab, draft.n_vocab)
    room = given.tokens + given.n
    whole = opened(draft, room)
    short = ShortMemory(opened(draft, given.window))
    for path in given.texts:
        text = target.tokenize(path.read_text())[: given.tokens]
        answer = continued(target, text, given.n)
        held = text[-given.window // 2 :]
        columns = [
            guesses(model, before, answer, shared) for model, before in ((whole, text), (short, text), (short, held))
        ]
        full, less, _ = (sum(map(int.__eq__, guessed, answer[1:])) / (len(answer) - 1) for guessed, _ in columns)
        times = [1000 * median(seconds) for _, seconds in columns]
        print(
            f"{path.name}: {len(text):,} tokens; agreement {full:.3f} with all of it, {less:.3f} with a window "
            f"of {given.window:,} ({less / full if full else 0:.2f} of it); a pass takes {times[0]:.1f} ms, "
            f"{times[1]:.1f} ms, and after {len(held):,} tokens {times[2]:.1f} ms",
            flush=True,
        )


def opened(model: Model, n_ctx: int) -> LlamaContext:
    return LlamaContext(model, n_ctx, 8, host.physical_cores(), Interrupt())


def continued(model: Model, text: Sequence[int], count: int) -> list[int]:
    """What the target goes on with, greedily."""
    context = opened(model, len(text) + count)
    tokens = [int(context.decode(text)[0].argmax())]
    while len(tokens) < count and not model.is_end(tokens[-1]):
        tokens.append(int(context.decode(tokens[-1:])[0].argmax()))
    context.close()
    return tokens


def guesses(
    model: DraftModel, text: Sequence[int], answer: Sequence[int], shared: int
) -> tuple[list[int], list[float]]:
    """After each token of an answer but the last, what the draft model expects next; and the seconds of each pass."""
    model.rewind(0)
    model.decode(model.make_room(text, 1))
    found, seconds = [], []
    for token in answer[:-1]:
        before = perf_counter()
        row = model.decode(model.make_room((token,), 1))[0, :shared]
        seconds.append(perf_counter() - before)
        found.append(int(row.argmax()))
    return found, seconds


if __name__ == "__main__":
    main()
