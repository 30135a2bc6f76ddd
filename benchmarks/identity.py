"""Checks that answers are the target's own: every difference from the target alone is proved to be rounding, or a bug.

    python benchmarks/identity.py out.jsonl --prompts HumanEval.jsonl                 # the bundled pair, greedy
    python benchmarks/identity.py out.jsonl --target BIG --draft SMALL --limit 40 --threads 2 --bitwise
    python benchmarks/identity.py out.jsonl --temp 0.8 --drafters model,ngram --lengths 2,4,auto    # sampled, coupled

Writes one line of JSON for each prompt and variant; existing ones aren't run again. At a temperature, prompt number i
has the seed i. --prompts: a suite, or a file as for `compare --prompts`. --pad N puts up to N tokens of code before
each prompt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import add_models, machine

from specdec_cli.decoding.divergence import Transcript
from specdec_cli.engine.engine import one_session
from specdec_cli.engine.session import Session
from specdec_cli.measure import suites
from specdec_cli.settings.config import Settings
from specdec_cli.settings.options import AUTO

CODE = 'def area_{0}(width, height):\n    """Area {0} in square metres."""\n    return width * height * {0}\n\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", default="python")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--pad", type=int, default=0)
    parser.add_argument("--drafters", default="model,ngram,ngram+model")
    parser.add_argument("--lengths", default="1,2,3,4,8,auto")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bitwise", action="store_true")
    options = parser.parse_args()
    sampling = {"max_tokens": options.tokens, "temperature": options.temp, "accept": "coupled"}
    settings = Settings(options.target, options.draft, threads=options.threads, bitwise=options.bitwise, **sampling)
    lengths = [length if length == AUTO else int(length) for length in options.lengths.split(",")]
    variants = [
        replace(settings, drafter=drafter, draft_tokens=length)
        for drafter in options.drafters.split(",")
        for length in lengths
    ]
    done = _done(options.out)
    with one_session(settings) as session, options.out.open("a", encoding="utf-8") as out:
        prompts = []
        for prompt in suites.load(options.prompts)[: options.limit]:
            tokens = session.tokenize(prompt.text, raw=True)
            padding = session.tokenize("".join(CODE.format(i) for i in range(options.pad // 20)), raw=True)
            prompts.append((prompt.id, [*padding[: max(options.pad - len(tokens), 0)], *tokens]))
        session.open(max(len(tokens) for _, tokens in prompts), variants)
        about = f"{Path(options.target).stem} {options.threads} {options.pad} {options.temp:g} {options.bitwise}"
        about += f" {options.tokens}" * (options.tokens != parser.get_default("tokens"))
        for seed, (name, tokens) in enumerate(prompts, 1):
            own: Transcript | None = None
            for variant in variants:
                key = f"{about} {name} {variant.drafter} {variant.draft_tokens}"
                if key in done:
                    continue
                own = own or _transcript(session, tokens, seed, settings.alone())
                line = {"key": key, **_compared(session, tokens, seed, variant, own)}
                print(json.dumps(line), file=out, flush=True)
                done[key] = line
        rounding = str(session.costs.agreement or "")
    _summary(about, done, rounding)


def _done(path: Path) -> dict[str, dict[str, Any]]:
    """The results of earlier runs, by key."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {line["key"]: line for line in map(json.loads, lines)}


def _transcript(session: Session, prompt: list[int], seed: int, settings: Settings) -> Transcript:
    events = list(session.events(prompt, seed, settings=settings))
    return Transcript.of(events, tuple(session.models.target.opened.thread_log))


def _compared(session: Session, prompt: list[int], seed: int, variant: Settings, own: Transcript) -> dict[str, Any]:
    mine = _transcript(session, prompt, seed, variant)
    found = session.divergence(prompt, own, mine, seed, variant)
    drafted = sum(len(each.draft.tokens) for each in mine.passes)
    accepted = sum(len(each.path) for each in mine.passes)
    about = {"tokens": len(mine.tokens), "passes": len(mine.passes), "drafted": drafted, "accepted": accepted}
    return {**about, "divergence": found.to_json() if found else None}


def _summary(about: str, done: dict[str, dict[str, Any]], rounding: str) -> None:
    """Print a summary of all lines with these settings."""
    lines = [line for key, line in done.items() if key.startswith(f"{about} ")]
    kinds = Counter(line["divergence"]["kind"] if line["divergence"] else "identical" for line in lines)
    print(f"{machine()}\n{about}: {len(lines)} answers: {dict(kinds)}", file=sys.stderr)
    margins = [line["divergence"]["own_margin"] for line in lines if line["divergence"]]
    known = sorted(margin for margin in margins if margin is not None)
    if known:
        print(f"own margins from {known[0]:.3g} to {known[-1]:.3g}", file=sys.stderr)
    if rounding:
        print(rounding, file=sys.stderr)


if __name__ == "__main__":
    main()
