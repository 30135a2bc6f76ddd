"""Checks whether `-k auto` is ever slower than the target alone on this machine, by the time in llama_decode per suite.

    python benchmarks/never_slower.py out.jsonl --target BIG --draft SMALL --drafters ngram,model,ngram+model

For each prompt, the target alone and each drafter answer in turn, in an order that reverses every round. The figure is
the time in llama_decode per token, of both models together, which other programs disturb least. Writes one line of JSON
per prompt; existing ones aren't run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import add_models, forward_s, machine

from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.decoding.types import Step
from specdec_cli.engine.engine import one_session
from specdec_cli.engine.session import Session
from specdec_cli.measure import suites
from specdec_cli.settings.config import Settings

SUITES = "code,chat,reasoning,structured,summarisation,translation,creative,python,edit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafters", default="ngram,model,ngram+model")
    parser.add_argument("--suites", default=SUITES)
    parser.add_argument("--limit", type=int, default=2, help="prompts per suite")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--ctx", type=int, default=2048)
    options = parser.parse_args()
    drafters = options.drafters.split(",")
    needs = "model" if any("model" in drafter for drafter in drafters) else "ngram"
    settings = Settings(
        options.target,
        options.draft if needs == "model" else None,
        drafter=needs,
        max_tokens=options.tokens,
        temperature=options.temp,
        accept="coupled",
        threads=options.threads,
        ctx=options.ctx,
    )
    variants = [settings.alone(), *(replace(settings, drafter=drafter) for drafter in drafters)]
    done = {}
    if options.out.exists():
        done = {line["key"]: line for line in map(json.loads, options.out.read_text("utf-8").splitlines())}
    with one_session(settings) as session, options.out.open("a", encoding="utf-8") as out:
        session.open(1, variants)
        for suite in options.suites.split(","):
            for number, prompt in enumerate(suites.load(suite)[: options.limit]):
                about = f"{Path(options.target).stem} {options.drafters} {options.threads} {options.tokens}"
                key = f"{about} {options.temp:g} {suite} {prompt.id}"
                if key in done:
                    continue
                tokens = session.tokenize(prompt.text)
                seconds = _measured(session, tokens, number, variants, options.rounds)
                done[key] = {"key": key, "suite": suite, "ms_per_token": seconds}
                print(json.dumps(done[key]), file=out, flush=True)
                print(key, {name: f"{seconds['none'] / each:.3f}" for name, each in seconds.items()}, file=sys.stderr)
    _summary(done.values(), drafters)


def _measured(
    session: Session, prompt: list[int], seed: int, variants: list[Settings], rounds: int
) -> dict[str, float]:
    """Milliseconds in llama_decode per token after the first, in each variant's fastest round."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for variant in variants if number % 2 == 0 else variants[::-1]:
            start, tokens = (0.0, 0.0), 0
            for event in session.events(prompt, seed, settings=variant):
                if isinstance(event, Step):
                    tokens += len(event.tokens)
                    if event.index == 0:
                        start = forward_s(session)
            spent = sum(forward_s(session)) - sum(start)
            found.setdefault(variant.drafter, []).append(1000 * spent / max(tokens - 1, 1))
    return {drafter: min(laps) for drafter, laps in found.items()}


def _summary(lines: Iterable[dict[str, Any]], drafters: list[str]) -> None:
    """Print the speed relative to the target alone by suite: the geometric mean over prompts."""
    by_suite: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        by_suite.setdefault(line["suite"], []).append(line["ms_per_token"])
    print(f"{machine()}\n\n| suite | {' | '.join(drafters)} |\n|---|{'---|' * len(drafters)}")
    every = [each for found in by_suite.values() for each in found]
    for suite, found in [*by_suite.items(), ("all", every)]:
        cells = [geometric_interval([each["none"] / each[drafter] for each in found]) for drafter in drafters]
        print(f"| {suite} | {' | '.join(str(cell) for cell in cells)} |")


if __name__ == "__main__":
    main()
