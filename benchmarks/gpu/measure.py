"""A day on a GPU in stages, each a command of its own that writes JSON into one folder and heeds a time limit.

    source build/gpu/env.sh
    python3 benchmarks/gpu/measure.py STAGE --target T.gguf --draft D.gguf --out FOLDER [--seconds 540]

    curves    what passes cost: t(n) of both models, by context, with and without flash attention
    outside   the share of the time that is not spent in llama_decode
    waits     what a step waits for
    compare   fixed and automatic draft lengths, chains and trees, against the target alone
    peers     specdec against llama-server and llama-speculative-simple at their best static settings
    report    all that is in the folder as Markdown, and whether it meets the bars; needs no models

`compare` and `peers` may be called again: the one for other temperatures and suites, the other to go on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))

import against
import curves
import report
import waits
from common import add_models, machine, open_demo
from peers import progress, tasks_of
from server import Servers

from specdec_cli.llama import host, library

ARMS = ("--sweep", "k=1,2,4,8,auto", "--vs", "k=4,tree=2", "--vs", "k=8,tree=4", "--vs", "k=auto,tree=4")
OFFLOADED = ("-ngl", "999", "-ngld", "999")
"""As specdec does, whatever llama.cpp would choose by itself."""


def write(options: argparse.Namespace, name: str, **measured: Any) -> None:
    """One file of the folder."""
    (options.out / name).write_text(json.dumps({"machine": devices(), **measured}) + "\n")
    progress(f"wrote {name}")


def devices() -> str:
    """What the figures were taken on."""
    return f"{library.machine()}; {machine()}"


def measure_curves(options: argparse.Namespace) -> None:
    models = {"target": options.target, "draft": options.draft}
    found: list[dict[str, Any]] = []
    for curve in curves.measure(models, options.contexts, options.threads, options.seconds, options.longest):
        found.append(curve)
        least = curve["least_ms"]
        progress(f"{curve['model']} {curve['context']} fa={curve['flash_attention']}: 1 token {least['1']:.3f} ms")
        write(options, "curves.json", models=models, curves=found)
    print(report.hardware(options.out))


def measure_outside(options: argparse.Namespace) -> None:
    script = [sys.executable, str(Path(__file__).parent.parent / "overhead.py"), "--steps-only"]
    script += ["--target", options.target, "--draft", options.draft, "--threads", str(options.threads)]
    script += ["--repeat", str(options.repeat), "--seconds", str(options.seconds)]
    subprocess.run([*script, "--out", str(options.out / "outside.json")], check=True)


def measure_waits(options: argparse.Namespace) -> None:
    ways = [name for name in waits.WAYS if not options.setting or name in options.setting]
    models = {"target": options.target, "draft": options.draft}
    every = [waits.WAYS[name] for name in ways]
    with open_demo(every, threads=options.threads, max_tokens=options.tokens, **models) as engine:
        steps = waits.measure(engine, options.repeat, ways)
        found = {"steps": steps, "rows": waits.rows(engine, 9, seconds=5.0), "planning": waits.planning(engine)}
        write(options, "waits.json", models=models, **found)
    print(report.waits_table(found))


def measure_compare(options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "specdec_cli", "compare", "--json", *ARMS, "-m", options.target, "-md"]
    command += [options.draft, "--prompts", options.prompts, "-n", str(options.tokens), "--temp", f"{options.temp:g}"]
    command += ["--repeat", str(options.repeat), "--seed", "1", "-t", str(options.threads)]
    if options.per_category:
        command += ["--per-category", str(options.per_category)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it keeps what it has
        output, _ = process.communicate()
    if not output:
        raise SystemExit(f"specdec compare measured nothing (exit code {process.returncode})")
    found = json.loads(output)
    suite = Path(options.prompts).stem
    write(options, f"compare-{suite}-{options.temp:g}.json", suite=suite, temp=options.temp, result=found)
    print(report.compare_table({"suite": suite, "temp": options.temp, "result": found}))


def measure_peers(options: argparse.Namespace) -> None:
    server, simple = (shutil.which(name) or "" for name in ("llama-server", "llama-speculative-simple"))
    if not server:
        raise SystemExit("llama-server is not on the path: source env.sh of the folder that build.sh made")
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # else a tool that is a process an answer loads as it goes
    began = monotonic()
    models = {"target": options.target, "draft": options.draft}
    with open_demo(threads=options.threads, max_tokens=options.tokens, **models) as engine:
        plan = against.Plan(
            options.out / "peers.json",
            options.temps,
            tasks_of(options, engine),
            options.repeat,
            lambda: monotonic() - began < options.seconds,
        )
        with Servers(server, engine.settings, OFFLOADED, options.loaded) as servers:
            grid = against.GRID[:: options.every]
            finished = against.sweep(plan, servers, engine, grid) and against.matches(
                plan, servers, engine, simple, OFFLOADED
            )
    progress("all is measured" if finished else "out of time: call again to go on")
    print(report.peers_table(plan.load()))


def report_all(options: argparse.Namespace) -> None:
    print(report.everything(options.out))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = made.add_subparsers(required=True, metavar="STAGE")

    def stage(name: str, run: Any, repeat: int) -> argparse.ArgumentParser:
        its = stages.add_parser(name)
        its.set_defaults(run=run)
        add_models(its)
        its.add_argument("--out", type=Path, required=True, metavar="FOLDER")
        its.add_argument("--seconds", type=float, default=540, help="to end in; models load besides")
        its.add_argument("--threads", type=int, default=host.physical_cores())
        its.add_argument("--repeat", type=int, default=repeat, help="rounds over the prompts")
        its.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
        return its

    its = stage("curves", measure_curves, 1)
    its.add_argument("--contexts", type=int, nargs="+", default=[256, 4096, 16384])
    its.add_argument("--longest", type=int, default=curves.LONGEST, help="n goes from 1 to this")
    stage("outside", measure_outside, 2)
    its = stage("waits", measure_waits, 1)
    its.add_argument("--setting", action="append", choices=list(waits.WAYS), help="only this; may be given again")
    its = stage("compare", measure_compare, 2)
    its.add_argument("--prompts", default="python", help="a suite's name or a file of prompts")
    its.add_argument("--temp", type=float, default=0.0)
    its.add_argument("--per-category", type=int, metavar="N", help="prompts of each category, at most")
    its = stage("peers", measure_peers, 1)
    its.add_argument("--prompts", default="python", help="a suite's name or a file of prompts")
    its.add_argument("--category", action="append", default=[], help="only this one; may be given again")
    its.add_argument("--limit-per-category", type=int, default=4, metavar="N")
    its.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.8])
    its.add_argument("--loaded", type=int, default=3, metavar="N", help="servers in memory at once, at most")
    its.add_argument("--every", type=int, default=1, metavar="N", help="sweep only every Nth setting")
    stages.add_parser("report").set_defaults(run=report_all)
    stages.choices["report"].add_argument("--out", type=Path, required=True, metavar="FOLDER")
    return made


def main() -> None:
    options = parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.run(options)


if __name__ == "__main__":
    main()
