"""`specdec serve` and llama-server under load: each client sends its next request as soon as it has an answer.

python benchmarks/peers/under_load.py --server LLAMA_SERVER [--target M --draft D] --drafter model --clients 1 2 4 8

All servers stay loaded and take turns, round by round. Speed is the tokens of all clients over the seconds of a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))
from common import add_models, machine
from peers import RunningServer

from specdec_cli.measure import suites

LLAMA_DRAFTS = {
    "model": [["--spec-type", "draft-simple", "--spec-draft-n-max", str(n)] for n in (2, 4, 8)],
    "ngram": [["--spec-type", kind] for kind in ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")],
}
"""The settings of llama-server; the best one counts."""


@dataclass
class Loaded:
    """One server. speeds: tokens per second of each round; first_s: seconds to the first token of each request."""

    name: str
    server: RunningServer
    speeds: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


def ask(port: int, prompt: str, max_tokens: int) -> tuple[int, float]:
    """Send one request; returns the tokens of the answer, and the seconds to the first."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    connection, begun, first, tokens = HTTPConnection("127.0.0.1", port, timeout=300), perf_counter(), 0.0, 0
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"port {port} answers {answer.status}: {answer.read()!r}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if not first and any(choice.get("text") for choice in chunk["choices"]):
            first = perf_counter() - begun
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    connection.close()
    return tokens, first or perf_counter() - begun


def round_of(loaded: Loaded, prompts: list[str], clients: int, max_tokens: int) -> None:
    begun = perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda prompt: ask(loaded.server.port, prompt, max_tokens), prompts))
    loaded.speeds.append(sum(tokens for tokens, _ in answers) / (perf_counter() - begun))
    loaded.first_s += [first for _, first in answers]


def commands(args: argparse.Namespace, slots: int) -> dict[str, list[object]]:
    shape = ["-m", args.target, "-np", slots, "-t", args.threads, "-c"]
    ours = [sys.executable, "-m", "specdec_cli", "serve", *shape, args.ctx]
    theirs = [args.server, *shape, args.ctx * slots, "-kvu"]
    pair = ["-md", args.draft] if args.drafter == "model" else []
    found = {"specdec": [*ours, *pair, "--drafter", args.drafter], "specdec alone": [*ours, "--drafter", "none"]}
    found["llama-server alone"] = theirs
    for flags in LLAMA_DRAFTS[args.drafter]:
        found[f"llama-server {' '.join(flags[1::2])}"] = [*theirs, *pair, *flags]
    wanted = args.only or [""]
    return {name: command for name, command in found.items() if any(part in name for part in wanted)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("--server", required=True, help="llama-server, built from the same source")
    parser.add_argument("--drafter", choices=LLAMA_DRAFTS, default="model")
    parser.add_argument("--suite", default="python")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, default=40, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ctx", type=int, default=1024, help="per slot")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="servers whose names contain one of these")
    args = parser.parse_args()
    print(machine())
    numbered = enumerate(itertools.cycle(prompt.text for prompt in suites.load(args.suite)))
    texts = (f"# {number}\n{text}" for number, text in numbered)  # new prompts, because llama-server caches old ones
    for clients in args.clients:
        with ExitStack() as stack:
            servers = [
                Loaded(name, stack.enter_context(closing(RunningServer(command))))
                for name, command in commands(args, clients).items()
            ]
            for number in range(args.rounds + 1):
                prompts = list(itertools.islice(texts, args.requests if number else clients))
                for loaded in servers[:: 1 if number % 2 else -1]:
                    round_of(loaded, prompts, clients, args.max_tokens if number else 8)
                    if not number:  # a warm-up
                        loaded.speeds, loaded.first_s = [], []
        report(servers, clients)


def report(servers: list[Loaded], clients: int) -> None:
    """Geometric means over the rounds, so the share of the first server's speed is the ratio of the speeds shown, and
    the median time to the first token.
    """
    first = servers[0]
    ours = statistics.geometric_mean(first.speeds)
    print(f"\n{clients} clients: tokens/s (geometric mean of rounds), share of {first.name}'s, first token (median)")
    for each in servers:
        speed, first_ms = statistics.geometric_mean(each.speeds), 1000 * statistics.median(each.first_s)
        print(f"  {each.name:<34} {speed:8.1f}  {speed / ours:5.2f}  {first_ms:7.1f} ms", flush=True)


if __name__ == "__main__":
    main()
