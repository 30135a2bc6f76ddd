"""`specdec serve` beside llama-server on answers that are bound to JSON schemas: tokens per second of whole answers.

python benchmarks/peers/bound_answers.py --server LLAMA_SERVER [--target M --draft D] [--drafter model|ngram]

Both get the same requests, one after the other, in turn; the texts may differ in their layout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))
from common import machine
from schemas import schemas
from server import RunningServer
from under_load import commands


def ask(port: int, schema: object, prompt: str, chat: bool) -> tuple[int, float]:
    """Tokens of the answer, and its seconds."""
    body: dict[str, object] = {"temperature": 0, "max_tokens": 200}
    if chat:
        body["messages"] = [{"role": "user", "content": prompt}]
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    else:  # each server has a field of its own
        body |= {"prompt": prompt, "json_schema": schema, "structured_outputs": {"json": schema}}
    connection, begun = HTTPConnection("127.0.0.1", port, timeout=300), perf_counter()
    path = "/v1/chat/completions" if chat else "/v1/completions"
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"port {port} answers {answer.status}: {told}")
    return told["usage"]["completion_tokens"], perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="llama-server, built from the same source")
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--drafter", choices=("model", "ngram"), default="ngram")
    parser.add_argument("--chat", action="store_true", help="for models with a chat template")
    parser.add_argument("--every", type=int, default=10, help="only every so many schemas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.ctx, args.only = 2048, None
    print(machine())
    chosen = dict(list(schemas().items())[:: args.every])
    with ExitStack() as stack:
        arms = {
            name: stack.enter_context(RunningServer([*map(str, command)]))
            for name, command in commands(args, 1).items()
        }
        speeds: dict[str, list[float]] = {name: [] for name in arms}
        for number in range(args.rounds + 1):
            for name, server in list(arms.items())[:: 1 if number % 2 else -1]:
                tokens, seconds = 0, 0.0
                for kind, schema in chosen.items():
                    written, took = ask(
                        server.port, schema, f"Round {number}. Write an example as JSON: {kind}", args.chat
                    )
                    tokens, seconds = tokens + written, seconds + took
                if number:  # the first is a warm-up
                    speeds[name].append(tokens / seconds)
        ours = speeds["specdec"]
        for name, own in speeds.items():
            ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, own, strict=True))
            print(f"{name:<36} {statistics.median(own):8.1f} tokens/s; specdec is {ratio:.2f} x as fast", flush=True)


if __name__ == "__main__":
    main()
