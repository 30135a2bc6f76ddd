"""Checks whether llama-server runs as fast as `specdec export` predicts.

    python tests/real/export_check.py --llama-server BIN [-m TARGET -md DRAFT] [--suite python] [--lengths 2 4]

`tune` measures the pair on a suite, greedily. Then servers answer the suite's prompts: one with the exported command,
and one for each fixed length, whose speed is predicted in the same way, because on a small machine no length may pay.
Tokens per second are those that the server reports for decoding, without the prompt: the median over the prompts.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / "benchmarks" / name) for name in ("bench", "."))

from common import DEMO, machine
from tools import RunningServer

from specdec_cli import load
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.measure import acceptance_traces, simulate, suites, tune
from specdec_cli.measure.export import ENGINES, export
from specdec_cli.settings.config import Settings
from specdec_cli.weights import tuning

POLICY = ENGINES["llama-server"].policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("-m", "--target", default=str(DEMO / "target.gguf"))
    parser.add_argument("-md", "--draft", default=str(DEMO / "draft.gguf"))
    parser.add_argument("--suite", default="python")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--lengths", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("-n", type=int, default=64)
    given = parser.parse_args()
    settings = Settings(
        given.target, given.draft, drafter="model", threads=given.threads, threads_draft=given.threads, accept="match"
    )
    tune.tune(settings, given.suite, seconds=given.seconds)
    asked = {"target": given.target, "draft": given.draft, "temperature": 0.0, "threads": given.threads}
    found = export("llama-server", None, asked)
    exported = shlex.split(found.command)[1:]
    if found.setting is None:
        raise SystemExit(found.expected[0])
    paths = Path(given.target), Path(given.draft)
    tuned, recorded = tuning.load(*paths), acceptance_traces.recording_of(*paths, "greedy")
    if tuned is None or recorded is None:
        raise SystemExit("`tune` saved nothing")
    answers = acceptance_traces.read(recorded).answers
    predicted = {"exported": found.setting.tokens_per_s}
    commands = {"exported": exported}
    drafting = ["--spec-draft-model", given.draft, "--spec-type", "draft-simple", "--spec-draft-n-max"]
    for length in given.lengths:
        tally = simulate.replay(FixedLength(length), answers, simulate.FREE)
        predicted[f"{length} tokens"] = tally.tokens / POLICY.seconds(tally, tuned.costs)
        commands[f"{length} tokens"] = [*exported, *drafting, str(length)]
    with load(target=given.target, draft=given.draft, ctx=2048, threads=given.threads) as engine:
        prompts = [engine.tokenize(prompt.text) for prompt in suites.load(given.suite)][: given.limit]
    speeds: dict[str, list[float]] = {name: [] for name in commands}
    servers = {
        name: RunningServer([given.llama_server, *command, "-c", "2048", "-np", "1"])
        for name, command in commands.items()
    }
    for number, prompt in enumerate(prompts):
        for name in list(servers)[:: -1 if number % 2 else 1]:
            body = {"prompt": list(prompt), "n_predict": given.n, "temperature": 0.0, "cache_prompt": False}
            timings = servers[name].complete(body)["timings"]
            if timings["predicted_n"] >= given.n // 2:
                speeds[name].append(timings["predicted_per_second"])
    for server in servers.values():
        server.close()
    print(f"{machine()}; {paths[0].name} + {paths[1].name}, {given.suite}\n")
    print("| setting | predicted, tokens/s | llama-server, tokens/s | measured / predicted |\n|---|---:|---:|---:|")
    for name, found in speeds.items():
        measured = statistics.median(found)
        print(f"| {name} | {predicted[name]:,.1f} | {measured:,.1f} | {measured / predicted[name]:.2f} |")


if __name__ == "__main__":
    main()
