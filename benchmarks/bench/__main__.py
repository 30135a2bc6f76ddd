"""Measure specdec and llama.cpp's own tools on this machine, for docs/benchmarks.md.

    make bench [QUICK=1]
    python benchmarks/bench [--quick] [--greedy] [--minutes N] [--only TEXT] [--again]
    python benchmarks/bench --target big.gguf --draft small.gguf --peer-flags '-ngl 999 -ngld 999'

Results are written to benchmarks/results after each cell, so if a run was interrupted, or --minutes ended it, the same
command continues it. `python benchmarks/bench/page.py` writes them into docs/benchmarks.md and the README.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parent))

import results
from cells import MODELS, SUITES, Cell, Model, cells, methods_of, size_of
from load import LoadCell, load_cells, measure_load
from measure import ATTEMPTS, MAX_NOISE, measure_cell
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from tools import N_CTX, Peers, forget_peak, free_port, task_of

from specdec_cli import load
from specdec_cli.llama import host, library
from specdec_cli.measure import suites

FETCH = results.ROOT.parent / "shared" / "real-models" / "fetch"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
BUILD = Path(__file__).parent / "build_llama_cpp.sh"
PROGRAMS = ("llama-server", "llama-speculative-simple")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some cells, in 15 minutes on two cores")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing new after this time")
    parser.add_argument("--greedy", action="store_true", help="only temperature 0")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name contains this, or 'http'")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="by default, a file in benchmarks/results")
    parser.add_argument("--again", action="store_true", help="measure what another commit has measured, too")
    parser.add_argument("--target", help="your own model instead of those of the page")
    parser.add_argument("--draft", help="its draft model")
    parser.add_argument("--suite", action="append", choices=SUITES, help="of your own model; may be repeated")
    parser.add_argument("--gpu-layers", type=int, help="of both models")
    parser.add_argument("--threads", type=int, default=host.physical_cores())
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="with llama-server; by default they are built")
    parser.add_argument("--peer-flags", type=shlex.split, default=[], metavar="'FLAGS'", help="such as '-ngl 999'")
    return parser.parse_args()


def peers_folder(named: Path | None) -> Path:
    """The folder with llama.cpp's tools, built if they aren't there yet."""
    if named:
        if not (named / PROGRAMS[0]).is_file():
            raise SystemExit(f"There is no {PROGRAMS[0]} in {named}.")
        return named
    folder = results.ROOT / "build" / "peers" / library.versions()["llama-cpp-python"] / "build" / "bin"
    if not all((folder / name).is_file() for name in PROGRAMS):
        print("Building llama.cpp's own tools, which takes some minutes ...", file=sys.stderr)
        command = [str(BUILD), str(folder.parents[1]), *PROGRAMS]
        environment = {**os.environ, "PYTHON": sys.executable}
        done = subprocess.run(command, cwd=results.ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise SystemExit("The build failed. Name a folder with llama-server: --peers FOLDER.")
    return folder


def found_models(options: argparse.Namespace) -> list[Model]:
    """The models that are measured: the named ones, or those of the page that are here."""
    if options.target:
        drafters = ("model", "ngram") if options.draft else ("ngram",)
        for file in filter(None, (options.target, options.draft)):
            if not Path(file).is_file():
                raise SystemExit(f"There is no file {file}.")
        if not options.out:
            raise SystemExit("Results of your own models don't belong on the page: name a file for them with --out.")
        name = " + ".join(Path(each).stem for each in (options.target, options.draft) if each)
        return [Model(name, options.target, options.draft, drafters, suites=tuple(options.suite or SUITES))]
    folder = Path(os.environ.get("SPECDEC_REAL_MODELS") or _CACHE / "specdec-real-models")
    if not os.environ.get("SPECDEC_REAL_MODELS") and os.access(FETCH, os.X_OK):
        subprocess.run([FETCH, folder], check=False, env={**os.environ, "PYTHON": sys.executable})
    here = []
    for model in MODELS:
        files = [folder / name for name in (model.target, model.draft) if name]
        if missing := [file.name for file in files if not file.is_file()]:
            print(f"{model.name}: not measured, because {missing[0]} isn't in {folder}.", file=sys.stderr)
        else:
            draft = str(files[1]) if model.draft else None
            here.append(replace(model, target=str(files[0]), draft=draft))
    return here


class Run:
    """Measures what is missing, and saves it after each cell."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.begun = options, monotonic()
        self.models = found_models(options)
        machine = results.this_machine()
        self.path = options.out or results.path_of(machine)
        kept = results.load(self.path) if self.path.exists() else results.Results(machine)
        same = kept.machine.versions.get("llama.cpp") == machine.versions.get("llama.cpp")
        self.found = results.Results(machine, kept.cells, kept.load, kept.http) if same else results.Results(machine)
        self.tools = peers_folder(options.peers)
        columns = MofNCompleteColumn(), TextColumn("cells"), BarColumn(), TimeRemainingColumn(), TextColumn("left")
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def is_missing(self, cell: Cell | LoadCell) -> bool:
        """Whether a cell isn't measured yet, or only quickly, or noisily and was stopped, or by another commit and anew
        is asked for.
        """
        found: results.CellFigures | results.LoadFigures | None
        if isinstance(cell, LoadCell):
            found = self.found.load.get(cell.key)
            less = found is not None and (found.requests, found.rounds) < (cell.requests, cell.rounds)
        else:
            found = self.found.cells.get(cell.key)
            stopped = found is not None and found.noise > MAX_NOISE and found.attempts < ATTEMPTS
            less = found is not None and (found.quick or stopped) and not self.options.quick
        return found is None or less or (self.options.again and found.commit != results.commit())

    def run(self) -> bool:
        """Measure everything that is missing. Returns whether nothing is left."""
        quick, only = self.options.quick, self.options.only
        answers = [cell for cell in cells(self.models, quick) if only in cell.key]
        answers = [cell for cell in answers if not (self.options.greedy and cell.temperature)]
        answers = [cell for cell in answers if self.is_missing(cell)]
        files = {Path(model.target).name: Path(model.target) for model in self.models}
        loads = [cell for cell in load_cells(quick) if cell.model in files and only in f"load | {cell.key}"]
        loads = [cell for cell in loads if self.is_missing(cell)]
        with self.bar:
            task = self.bar.add_task("", total=len(answers) + len(loads))
            for model, group in groupby(answers, key=lambda cell: cell.model):
                if not self._measure(model, [*group], task):
                    return False
            for cell in loads:
                if not self._has_time(f"load | {cell.key}"):
                    return False
                self.found.load[cell.key] = measure_load(cell, files[cell.model], self.tools, self.options.threads)
                results.save(self.path, self.found)
                self.bar.advance(task)
        wanted = only in "http" and not (quick or self.options.target)
        if wanted and (self.options.again or not self.found.http):
            if not self._has_time("http"):
                return False
            import http_layer  # noqa: PLC0415 - its packages are optional

            self.found.http = http_layer.rates(free_port())
            results.save(self.path, self.found)
        return True

    def _has_time(self, key: str) -> bool:
        """Whether there is time for a cell; if so, print its name."""
        if monotonic() - self.begun > 60 * self.options.minutes:
            return False
        self.bar.console.print(key, highlight=False, markup=False)
        return True

    def _measure(self, model: Model, group: Sequence[Cell], task: TaskID) -> bool:
        """Measure some cells of a model. Returns whether there was time for all of them."""
        options = self.options
        methods = [
            method
            for method in methods_of(model, options.quick)
            if method.tool == "specdec" or (self.tools / method.tool).is_file()
        ]
        peers = Peers(self.tools, model.target, model.draft, options.threads, options.peer_flags)
        forget_peak()
        with (
            load(
                target=model.target,
                draft=model.draft,
                ctx=N_CTX,
                threads=options.threads,
                gpu_layers=options.gpu_layers,
                gpu_layers_draft=options.gpu_layers,
            ) as engine,
            closing(peers),
        ):
            for cell in group:
                if not self._has_time(cell.key):
                    return False
                size = size_of(cell, options.quick)
                prompts = suites.select(suites.load(cell.suite), limit=size.prompts)
                with closing(engine.session()) as session:
                    tasks = [task_of(session, prompt.id, prompt.text, model.raw) for prompt in prompts]
                    for figures in measure_cell(cell, methods, tasks, size, session, peers):
                        self.found.cells[cell.key] = figures
                        results.save(self.path, self.found)
                self.bar.advance(task)
        return True


def main() -> None:
    options = arguments()
    run = Run(options)
    try:
        finished = run.run()
    except KeyboardInterrupt:
        finished = False
    print("Everything is measured." if finished else "Not everything is measured yet: run it again to continue.")
    print(f"The results are in {run.path.name}.")


if __name__ == "__main__":
    main()
