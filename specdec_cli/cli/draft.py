"""`specdec draft`: a draft model made of the target itself, with layers left out or with fewer bits."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.completion import models
from specdec_cli.display.status_line import status_line

if TYPE_CHECKING:
    from specdec_cli.engine.draft_copy import Target
    from specdec_cli.engine.layer_search import LayerSearch, Round
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.llama.quantize import Copy

draft = typer.Typer(
    help="Make a draft model of the target itself, for --drafter self.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="Target: a .gguf file, REPO:QUANT (pulled), or a profile.", autocompletion=models
    ),
]
_Out = Annotated[Path, typer.Option("--out", "-o", metavar="OUT.gguf", help="The draft's file.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite the draft's file if it is there.")]
_Threads = opt.annotation("threads")
_GpuLayers = opt.annotation("gpu_layers")
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@draft.command()
def prune(
    target: _TargetName,
    out: _Out,
    keep_layers: Annotated[str | None, typer.Option(metavar="LIST", help="Layers to keep, from 0: 0-7,31.")] = None,
    search: Annotated[
        int | None, typer.Option(metavar="N", help="Find N layers to keep, by measured agreement with the target.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="Suite or file of prompts to search by, as in compare. \\[default: python]")
    ] = None,
    force: _Force = False,
    threads: _Threads = None,
    gpu_layers: _GpuLayers = None,
    json_: _Json = False,
) -> None:
    """Copy a target with some of its layers only.

    --search drops the layer whose loss costs least agreement with the target, again and again, until N are left.
    """
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.engine import draft_copy as copier
    from specdec_cli.engine.layer_search import LayerSearch
    from specdec_cli.llama import library
    from specdec_cli.llama.quantize import Copy
    from specdec_cli.models import layer_pruning as pruning
    from specdec_cli.models import suites

    if (keep_layers is None) == (search is None):
        raise UsageError("which layers stay is not said, or said twice", "Give --keep-layers LIST, or --search N.")
    if prompts is not None and search is None:
        raise UsageError("--prompts is for --search", "Leave one of them out.")
    if prompts is not None:
        suites.load(prompts)
    threads = _require_threads(threads) or library.physical_cores()
    found = copier.Target.of(target)
    count = pruning.require_prunable(found.header)
    keep = pruning.layers_of(keep_layers, count) if keep_layers is not None else ()
    if search is not None and not 1 <= search < count:
        raise UsageError(f"{search} of {count} layers cannot be kept", f"Give --search 1 to {count - 1}.")
    copier.check_place(out, found, force)
    copier.require_room(out, found.header.size if search else pruning.size_with(found.header, keep))
    started = perf_counter()
    rounds: list[Round] = []
    with _stoppable() as interrupt, copier.beside(out) as folder:
        if search is not None:
            with status_line("letting the target answer", json_):
                chooser = LayerSearch(found.path, found.header, prompts, threads, _gpu(gpu_layers), interrupt)
            rounds = _search(chooser, found, Copy(found.path, folder / "whole.gguf", threads), search, json_, interrupt)
            keep = rounds[-1].kept
        drop = tuple(layer for layer in range(count) if layer not in keep)
        result = _make(found, Copy(found.path, folder / out.name, threads, drop), out, keep, json_, interrupt)
    steps = [{"layers": list(step.kept), "dropped": step.dropped, "agreement": step.agreement} for step in rounds]
    agreement = rounds[-1].agreement if rounds else None
    _finish({**result, "agreement": agreement, "search": steps, "seconds": perf_counter() - started}, target, json_)


@draft.command()
def quantize(
    target: _TargetName,
    out: _Out,
    type_: Annotated[str, typer.Option("--type", metavar="TYPE", help="The copy's type: Q2_K, Q3_K_M, IQ4_XS, ...")],
    force: _Force = False,
    threads: _Threads = None,
    json_: _Json = False,
) -> None:
    """Copy a target with fewer bits to a weight."""
    from specdec_cli.engine import draft_copy as copier
    from specdec_cli.llama import library
    from specdec_cli.llama.quantize import Copy
    from specdec_cli.models import layer_pruning as pruning
    from specdec_cli.models import quantisations

    wanted = quantisations.find(type_)
    threads = _require_threads(threads) or library.physical_cores()
    found = copier.Target.of(target)
    pruning.require_copyable(found.header)
    quantisations.require_smaller(found.header, wanted)
    copier.check_place(out, found, force)
    copier.require_room(out, quantisations.size_in(found.header, wanted))
    count = found.header.setting("block_count")
    layers = tuple(range(count)) if type(count) is int else ()
    started = perf_counter()
    with _stoppable() as interrupt, copier.beside(out) as folder:
        copy = Copy(found.path, folder / out.name, threads, file_type=wanted.file_type)
        result = _make(found, copy, out, layers, json_, interrupt)
    _finish({**result, "agreement": None, "seconds": perf_counter() - started}, target, json_)


@contextmanager
def _stoppable() -> Iterator[Interrupt]:
    """Let a signal end the work with nothing left behind."""
    from specdec_cli.decoding.errors import Interrupted
    from specdec_cli.llama.interrupt import Interrupt

    with Interrupt() as interrupt:
        try:
            yield interrupt
        except Interrupted:
            print("specdec: interrupted; nothing was written", file=sys.stderr)
            raise typer.Exit(interrupt.exit_code) from None


def _search(
    chooser: LayerSearch, found: Target, whole: Copy, keep: int, silent: bool, interrupt: Interrupt
) -> list[Round]:
    """Find the layers to keep on a copy that is written to, and remove that."""
    from specdec_cli.display import draft_making as copying
    from specdec_cli.engine import draft_copy as copier
    from specdec_cli.models import layer_pruning as pruning
    from specdec_cli.models.layer_skipping import SkippableCopy

    count = found.header.setting("block_count")
    copier.copy(found, whole, len(found.header.tensors), silent, interrupt)
    trials = chooser.trials(count, keep)

    def tell(step: Round) -> None:
        if silent:
            return
        if step.dropped is None:
            seconds = step.seconds * trials
            print(copying.plan(count, keep, chooser.n_prompts, chooser.n_tokens, trials, seconds), file=sys.stderr)
        bytes_ = pruning.size_with(found.header, step.kept)
        kept = pruning.ranges(step.kept) + ("  (the target itself, in other batches)" if step.dropped is None else "")
        line = copying.row(kept, len(step.kept), step.agreement, bytes_)
        print(line, file=sys.stderr, flush=True)

    rounds = chooser.run(SkippableCopy(whole.out, count), count, keep, tell)
    whole.out.unlink()
    return rounds


def _make(
    found: Target, wanted: Copy, out: Path, layers: tuple[int, ...], silent: bool, interrupt: Interrupt
) -> dict[str, Any]:
    """Write, examine, put in place. Returns what `--json` prints, but for the time and the agreement."""
    from specdec_cli.engine import draft_copy as copier
    from specdec_cli.models import layer_pruning as pruning

    count = found.header.setting("block_count")
    tensors = len(pruning.tensors_with(found.header, layers) if wanted.drop else found.header.tensors)
    unfit = copier.copy(found, wanted, tensors, silent, interrupt)
    header = copier.examine(wanted.out, found, len(layers) if layers else count, tensors, interrupt)
    kept = pruning.ranges(layers)
    notes = copier.put(wanted.out, out, found, f"{header.quantisation}, layers {kept} of {count}")
    return {
        "target": str(found.path),
        "out": str(out),
        "layers": list(layers),
        "kept": kept,
        "of": count,
        "type": header.quantisation,
        "bytes": header.size,
        "target_bytes": found.header.size,
        "unfit": [asdict(tensor) for tensor in unfit],
        "notes": notes,
    }


def _finish(result: dict[str, Any], name: str, as_json: bool) -> None:
    """Say what came of it and how to use it."""
    from specdec_cli.engine import model_source as sources

    model = "-p" if sources.is_profile(name) else "-m"
    result = {**result, "run": f'{shlex.join(["specdec", "run", model, name, "--drafter", "self"])} "..."'}
    if as_json:
        print(json.dumps(result), flush=True)
        return
    from rich.console import Console

    from specdec_cli.display import draft_making as copying

    console = Console(highlight=False)
    for part in copying.report(result):
        console.print(part)
    print(copying.use(result))


def _require_threads(threads: int | None) -> int | None:
    from specdec_cli.decoding.errors import UsageError

    if threads is not None and threads < 1:
        raise UsageError(f"threads cannot be {threads}", "Give -t 1 or more, or leave it out.")
    return threads


def _gpu(layers: int | None) -> int:
    return -1 if layers is None else layers
