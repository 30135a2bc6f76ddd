"""The n-gram drafter against llama-cpp-python's LlamaPromptLookupDecoding: tokens per step, and time per proposal.

    python benchmarks/ngram.py [--tokens N]

Both propose for the same texts, without a model in between: a proposal is as good as the text that really follows.
Texts: the bundled target's own greedy answers to the prompts of the python suite, and, for long contexts, Python's
own library, of which the last 512 tokens are written again after 1k, 8k and 32k tokens of it. Every proposer may
propose up to 10 tokens, as prompt lookup does by default; it takes 2 tokens to match as specdec does, and then 1.

Then `--ngram-corpus`: modules of a code base are written on after their first 512 tokens, without and with the rest of
the code base as the corpus. Code bases: Python's own library, every 25th module, and specdec itself, every module.
"""

from __future__ import annotations

import argparse
import statistics
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from common import machine, open_demo
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.llama.model import Model
from specdec_cli.measure import suites

MOST = 10
WRITTEN = 512

Proposer = Callable[[Sequence[int]], Sequence[int]]


def ours(prompt: Sequence[int]) -> Proposer:
    drafter, policy = NgramDrafter(), FixedLength(MOST)
    drafter.start(prompt)

    def propose(context: Sequence[int]) -> Sequence[int]:
        return drafter.propose(context, MOST, policy).tokens

    return propose


def with_corpus(corpus: Corpus) -> Callable[[Sequence[int]], Proposer]:
    def make(prompt: Sequence[int]) -> Proposer:
        drafter, policy = NgramDrafter(corpus), FixedLength(MOST)
        drafter.start(prompt)
        return lambda context: drafter.propose(context, MOST, policy).tokens

    return make


def theirs(prompt: Sequence[int]) -> Proposer:
    lookup = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=MOST)
    ids = np.array(prompt, np.intc)
    room = np.empty(len(prompt) + (1 << 16), np.intc)
    room[: ids.size] = ids

    def propose(context: Sequence[int]) -> Sequence[int]:
        # Its caller keeps the tokens in an array: only what is new is copied here, outside the clock's reach.
        return lookup(room[: len(context)]).tolist()  # type: ignore[no-any-return]

    propose.room = room  # type: ignore[attr-defined]
    return propose


def written(
    make: Callable[[Sequence[int]], Proposer], prompt: Sequence[int], answer: Sequence[int]
) -> dict[str, float]:
    """Write an answer with a proposer: tokens per step, acceptance, and the median seconds of a proposal."""
    propose = make(prompt)
    room = getattr(propose, "room", None)
    context, laps, steps, drafted, accepted, at = [*prompt], [], 0, 0, 0, 0
    while at < len(answer):
        if room is not None:
            room[: len(context)] = context
        before = perf_counter()
        tokens = propose(context)
        laps.append(perf_counter() - before)
        stands = 0
        while stands < len(tokens) and at + stands < len(answer) and tokens[stands] == answer[at + stands]:
            stands += 1
        steps, drafted, accepted = steps + 1, drafted + len(tokens), accepted + stands
        context += answer[at : at + stands + 1]
        at += stands + 1
    return {
        "tokens_per_step": len(answer) / steps,
        "acceptance": accepted / drafted if drafted else 0.0,
        "proposal_us": statistics.median(laps) * 1e6,
    }


def show(name: str, texts: list[tuple[Sequence[int], Sequence[int]]]) -> None:
    for label, make in (("specdec ngram", ours), ("LlamaPromptLookupDecoding", theirs)):
        show_row(name, label, [written(make, prompt, answer) for prompt, answer in texts])


def show_row(name: str, label: str, found: list[dict[str, float]]) -> None:
    mean = {key: statistics.fmean(part[key] for part in found) for key in found[0]}
    middle = statistics.median(part["tokens_per_step"] for part in found)
    print(
        f"{name:<28} {label:<26} {mean['tokens_per_step']:>6.2f} tokens/step (median text {middle:.2f})"
        f"  {mean['acceptance']:>6.1%} accepted  {mean['proposal_us']:>8.1f} us a proposal"
    )


def show_code_base(name: str, paths: Sequence[Path], model: Model, every: int) -> None:
    """Modules of a code base, each written without and with the others' text at hand."""
    before = perf_counter()
    modules = [model.tokenize(path.read_text("utf-8"), add_bos=False, special=False) for path in paths]
    read_s = perf_counter() - before
    chosen = [at for at in range(0, len(modules), every) if len(modules[at]) > WRITTEN + WRITTEN // 4]
    if every > 1:  # one index without all of them
        before = perf_counter()
        shared = Corpus.of([module for at, module in enumerate(modules) if at not in chosen])
        print(f"{name:<28} {len(shared):,} tokens read in {read_s:.1f} s, indexed in {perf_counter() - before:.1f} s")
        corpora = [shared] * len(chosen)
    else:
        corpora = [Corpus.of(modules[:at] + modules[at + 1 :]) for at in chosen]
    texts = [(modules[at][:WRITTEN], modules[at][WRITTEN : 2 * WRITTEN]) for at in chosen]
    show_row(name, f"specdec ngram, {len(texts)} modules", [written(ours, *text) for text in texts])
    found = [written(with_corpus(corpus), *text) for corpus, text in zip(corpora, texts, strict=True)]
    show_row(name, "with the rest as corpus", found)


def python_files(folder: Path, skipped: Sequence[str] = ()) -> list[Path]:
    """The UTF-8 Python files of a folder, without some of its subfolders."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        if not set(skipped) & set(path.relative_to(folder).parts):
            try:
                path.read_text("utf-8")
            except UnicodeDecodeError:
                continue
            found.append(path)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    tokens = options.parse_args().tokens
    print(f"{machine()}\n")
    with open_demo(max_tokens=tokens) as session:
        by_category: dict[str, list[tuple[Sequence[int], Sequence[int]]]] = {}
        for prompt in suites.load("python"):
            ids = session.tokenize(prompt.text, raw=True)
            events = session.events(ids, 0, settings=session.settings.alone())
            answer = [token.id for event in events if isinstance(event, Step) for token in event.tokens]
            by_category.setdefault(prompt.category, []).append((ids, answer))
        for category, texts in by_category.items():
            show(f"python suite, {category}", texts)
        library = Path(sysconfig.get_paths()["stdlib"])
        source = "\n".join((library / name).read_text("utf-8") for name in ("argparse.py", "typing.py", "pathlib.py"))
        ids = session.tokenize(source, raw=True)
        model = session.models.target.model
        foreign = ("site-packages", "test", "tests", "idlelib", "lib2to3")  # the last is a copy of much of the rest
        show_code_base("Python's library as corpus", python_files(library, foreign), model, every=25)
        own = Path(__file__).parent.parent / "specdec_cli"
        show_code_base("specdec as corpus", python_files(own), model, every=1)
    for size in (1 << 10, 1 << 13, 1 << 15):
        show(f"library, {size:,} tokens", [(ids[:size], ids[size : size + WRITTEN])])


if __name__ == "__main__":
    main()
