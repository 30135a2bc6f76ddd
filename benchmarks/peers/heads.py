"""Heads: specdec against llama-server's own draft-mtp or draft-eagle3 on the same files, side by side.

    python benchmarks/peers/heads.py MODEL --llama-server BIN [--head eagle3.gguf] [--suite python] [--temp 0] [-n 128]

A server for each fixed length of draft answers a prompt, then specdec with `auto` and with the same lengths, and so on
through the prompts; other rounds go the other way. The server's setting is the one that is fastest over all prompts.
Tokens per second are each program's own count of decoding, without the prompt. Of each length, what was drafted and
accepted by both is counted, too: greedily, the same head in the same places drafts the same.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from server import RunningServer

from specdec_cli import SamplingParams, SpeculativeConfig, load
from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.engine.session import Session
from specdec_cli.measure import suites

LENGTHS = (0, 1, 2, 3, 4)

Answered = tuple[float, int, int]
"""Tokens per second of an answer, and the tokens drafted and accepted."""
Way = Callable[[str, int], Answered]
"""How a prompt is answered, with a seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head for it; without one, it has next-token layers")
    parser.add_argument("--suite", default="python")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    prompts = [prompt.text for prompt in suites.load(given.suite)]
    servers = {f"llama-server, {k}": _server(given, k) for k in LENGTHS}
    how = SpeculativeConfig("eagle3" if given.head else "mtp")
    with load(target=given.model, draft=given.head, ctx=1024, threads=given.threads, speculative=how) as session:
        ways: dict[str, Way] = {name: partial(_asked, server, given) for name, server in servers.items()}
        ways |= {f"specdec, {k}": partial(_answered, session, given, k) for k in (*LENGTHS, "auto")}
        answers: dict[str, list[Answered]] = {name: [] for name in ways}
        for turn in range(given.rounds):
            for number, prompt in enumerate(prompts):
                for name in list(ways)[:: -1 if (turn + number) % 2 else 1]:
                    answers[name].append(ways[name](prompt, turn))
    for server in servers.values():
        server.stop()
    speeds = {name: [speed for speed, _, _ in found] for name, found in answers.items()}
    for name, found in answers.items():
        drafted, accepted = (sum(counts) for counts in list(zip(*found, strict=True))[1:])
        said = f", {accepted:,} of {drafted:,} accepted" if drafted else ""
        print(f"{name}: median {statistics.median(speeds[name]):.1f} tokens/s{said}")
    best = max(servers, key=lambda name: statistics.median(speeds[name]))
    drafting = max(list(servers)[1:], key=lambda name: statistics.median(speeds[name]))
    for other in dict.fromkeys((drafting, best)):
        ratio = geometric_interval([a / b for a, b in zip(speeds["specdec, auto"], speeds[other], strict=True)])
        print(f"specdec's auto over {other}: {ratio}")


def _server(given: argparse.Namespace, length: int) -> RunningServer:
    parts: list[object] = [given.llama_server, "-m", given.model, "-c", 1024, "-np", 1, "-t", given.threads]
    if length:
        parts += ["--spec-type", "draft-eagle3" if given.head else "draft-mtp"]
        parts += ["--spec-draft-n-max", length, "--spec-draft-p-min", 0]
        parts += ["-md", given.head] if given.head else []
    return RunningServer([str(part) for part in parts])


def _asked(server: RunningServer, given: argparse.Namespace, prompt: str, seed: int) -> Answered:
    body = {"prompt": prompt, "n_predict": given.n, "temperature": given.temp, "seed": seed, "cache_prompt": False}
    found = server.complete({**body, "top_k": 40, "top_p": 0.95, "min_p": 0.05})["timings"]
    speed = 1000 * float(found["predicted_n"]) / float(found["predicted_ms"])
    return speed, int(found.get("draft_n", 0)), int(found.get("draft_n_accepted", 0))


def _answered(session: Session, given: argparse.Namespace, length: Any, prompt: str, seed: int) -> Answered:
    how = SpeculativeConfig(draft_tokens=length or 1, drafter=None if length else "none", accept="rejection")
    sampling = SamplingParams(temperature=given.temp, seed=seed, max_tokens=given.n)
    answer = session.generate(prompt, sampling, how, raw=True)
    return answer.metrics.tokens_per_s or 0.0, answer.metrics.drafted, answer.metrics.accepted


if __name__ == "__main__":
    main()
