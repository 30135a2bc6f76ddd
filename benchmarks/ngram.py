"""The n-gram drafter against llama-cpp-python's LlamaPromptLookupDecoding: tokens per step, and time per proposal.

    python benchmarks/ngram.py [--tokens N]

Both propose for the same texts, without a model in between: a proposal is as good as the text that really follows.
Texts: the bundled target's own greedy answers to the prompts of the python suite, and, for long contexts, Python's
own library, of which the last 512 tokens are written again after 1k, 8k and 32k tokens of it. Every proposer may
propose up to 10 tokens, as prompt lookup does by default; it takes 2 tokens to match as specdec does, and then 1.
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

from specdec_cli.decoding.length import FixedLength
from specdec_cli.decoding.types import Step
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.models import suites

MOST = 10
WRITTEN = 512

Proposer = Callable[[Sequence[int]], Sequence[int]]


def ours(prompt: Sequence[int]) -> Proposer:
    drafter, policy = NgramDrafter(), FixedLength(MOST)
    drafter.start(prompt)

    def propose(context: Sequence[int]) -> Sequence[int]:
        return drafter.propose(context, MOST, policy).tokens

    return propose


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
        found = [written(make, prompt, answer) for prompt, answer in texts]
        mean = {key: statistics.fmean(part[key] for part in found) for key in found[0]}
        print(
            f"{name:<28} {label:<26} {mean['tokens_per_step']:>6.2f} tokens/step  {mean['acceptance']:>6.1%} accepted"
            f"  {mean['proposal_us']:>8.1f} us a proposal"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    tokens = options.parse_args().tokens
    print(f"{machine()}\n")
    with open_demo(max_tokens=tokens) as session:
        by_category: dict[str, list[tuple[Sequence[int], Sequence[int]]]] = {}
        for prompt in suites.load("python"):
            ids = session.target.tokenize(prompt.text)
            events = session.events(ids, 0, settings=session.settings.alone())
            answer = [token.id for event in events if isinstance(event, Step) for token in event.tokens]
            by_category.setdefault(prompt.category, []).append((ids, answer))
        for category, texts in by_category.items():
            show(f"python suite, {category}", texts)
        library = Path(sysconfig.get_paths()["stdlib"])
        source = "\n".join((library / name).read_text("utf-8") for name in ("argparse.py", "typing.py", "pathlib.py"))
        ids = session.target.tokenize(source)
    for size in (1 << 10, 1 << 13, 1 << 15):
        show(f"library, {size:,} tokens", [(ids[:size], ids[size : size + WRITTEN])])


if __name__ == "__main__":
    main()
