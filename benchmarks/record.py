"""Record what a pair of real models proposes and accepts on the suites, for the simulator.

    python benchmarks/record.py FOLDER --target T [--draft D] [--prompts 0:3] [--seed 1] [--minutes 30]

FOLDER gets a file for each kind of sampling, as in profiles/recordings: with a draft model `greedy`, `rejection` and
`coupled`, the last two of one and the same text, so that they can be compared place by place; without one `greedy` and
`sampled`, which hold texts alone. Prompts go through the model's chat template, but for those of the suite `python`,
which are beginnings. The suites take turns, so that a recording that is cut short has some of each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from common import open_demo

from specdec_cli.decoding.types import Step
from specdec_cli.engine.session import Session
from specdec_cli.measure import acceptance_traces as recordings
from specdec_cli.measure import suites
from specdec_cli.measure.acceptance_recorder import before_a_loop, record_rules
from specdec_cli.measure.acceptance_traces import Recording
from specdec_cli.measure.simulator import Answer, Text

TOKENS, EDIT_TOKENS = 96, 192
"""The longest answers; those that repeat a text need room for it."""
TEMPERATURE = 0.8
SAMPLED = ("rejection", "coupled")


def prompts(session: Session, first: int, last: int) -> Iterator[tuple[str, list[int]]]:
    """The prompts of each suite from one number to another, the suites in turn."""
    loaded = {name: suites.select(suites.load(name)) for name in suites.builtin()}
    apart = {name: suites.select(found, per_category=1) for name, found in loaded.items()}
    for number in range(first, last):
        for name, found in loaded.items():
            if name == "python":  # one of each category is too many, so the categories take turns
                kind = apart[name][number % len(apart[name])].category
                found = suites.select(found, [kind])  # noqa: PLW2901
            if number < len(found):
                text = found[number].text
                yield name, session.tokenize(text, raw=name == "python")


def of_pair(session: Session, category: str, prompt: list[int], seed: int) -> dict[str, tuple[Answer, Text]]:
    """One prompt's answers by kind of sampling, each with its text."""
    found = {}
    for temp, kinds in ((0.0, ("greedy",)), (TEMPERATURE, SAMPLED)):
        settings = replace(session.settings, temp=temp, max_tokens=EDIT_TOKENS if category == "edit" else TOKENS)
        rules = SAMPLED if temp else (settings.accept,)
        answers, tokens = record_rules(session, prompt, settings, seed, category, rules)
        text = Text(category, tuple(prompt), tuple(tokens[: before_a_loop(tokens)]))
        found |= {kind: (answers[rule], text) for kind, rule in zip(kinds, rules, strict=True)}
    return found


def of_target(session: Session, category: str, prompt: list[int], seed: int) -> dict[str, Text]:
    """One prompt's texts by kind of sampling."""
    found = {}
    for kind, temp in (("greedy", 0.0), ("sampled", TEMPERATURE)):
        settings = replace(session.settings, temp=temp, max_tokens=EDIT_TOKENS if category == "edit" else TOKENS)
        events = session.events(prompt, seed, settings=settings.alone())
        tokens = [token.id for event in events if isinstance(event, Step) for token in event.tokens]
        found[kind] = Text(category, tuple(prompt), tuple(tokens[: before_a_loop(tokens)]))
    return found


def write(folder: Path, about: Mapping[str, Any], kept: Mapping[str, list[tuple[Answer | None, Text]]]) -> None:
    for kind, entries in kept.items():
        sampling = (
            {} if kind == "greedy" else {"sampling": f"temperature {TEMPERATURE}, top-k 40, top-p 0.95, min-p 0.05"}
        )
        answers = tuple(answer for answer, _ in entries if answer and answer.stands)
        texts = () if kind == "coupled" else tuple(text for _, text in entries if len(text.tokens) > 1)
        recordings.write(folder / f"{kind}.json.gz", Recording(kind == "greedy", answers, {**about, **sampling}, texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--prompts", default="0:3", help="which of each suite, first:last")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many")
    options = parser.parse_args()
    first, last = (int(end) for end in options.prompts.split(":"))
    deadline = perf_counter() + 60 * options.minutes
    kept: dict[str, list[tuple[Answer | None, Text]]] = {}
    models = {"draft": options.draft, "drafter": "model" if options.draft else "ngram"}
    with open_demo(target=options.target, threads=1, seed=options.seed, **models) as session:
        about = recordings.identity(session.pair.target_path, session.pair.draft_path)
        about["prompts"] = f"{first} to {last - 1} of each suite, seed {options.seed}"
        for number, (category, prompt) in enumerate(prompts(session, first, last)):
            seed = 1000 * options.seed + number
            if options.draft:
                for kind, entry in of_pair(session, category, prompt, seed).items():
                    kept.setdefault(kind, []).append(entry)
            else:
                for kind, text in of_target(session, category, prompt, seed).items():
                    kept.setdefault(kind, []).append((None, text))
            print(f"{number} {category}: {len(prompt)} tokens", file=sys.stderr, flush=True)
            write(options.folder, about, kept)
            if perf_counter() > deadline:
                break


if __name__ == "__main__":
    main()
