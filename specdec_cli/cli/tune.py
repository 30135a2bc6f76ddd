"""`specdec tune`: what a pair comes to on this machine, measured once and kept for `run` and `compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.display.status_line import status_line

if TYPE_CHECKING:
    from specdec_cli.decoding.costs import Costs
    from specdec_cli.engine.config import Settings
    from specdec_cli.engine.model_pair import Pair
    from specdec_cli.store.acceptance_traces import Recording

_CONTEXT = 1024
_ANSWER = 64


_TAKES = (
    "target",
    "draft",
    "profile",
    "accept",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "ctx",
    "threads",
    "threads_draft",
    "gpu_layers",
    "gpu_layers_draft",
)


@opt.takes(*_TAKES)
def tune(
    given: opt.Given,
    prompts: Annotated[
        str | None, typer.Option(help="A suite or a file of prompts, as in compare. \\[default: a mixture]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 60.0,
    what_if: Annotated[
        str | None,
        typer.Option(
            metavar="HARDWARE",
            help="Measure nothing: predict for another machine.",
            autocompletion=completion.machines,
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    raw: opt.Raw = False,
    system: opt.System = None,
) -> None:
    """Measure a pair on this machine, predict what speculation brings, and let run and compare know."""
    from dataclasses import replace

    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.decoding.rules import LOSSY
    from specdec_cli.engine.config import AUTO
    from specdec_cli.engine.model_pair import check_pair
    from specdec_cli.engine.validation import validate

    if not 1 <= seconds <= 3600:
        raise UsageError(f"tuning cannot take {seconds:g} seconds", "Give --seconds from 1 to 3600.")
    settings = resolve(*opt.given(context))
    if settings.drafter not in ("model", "self"):
        raise UsageError(
            f"there is nothing to tune with the drafter {settings.drafter!r}",
            "Take it out of config.yaml or the profile.",
        )
    if settings.accept in LOSSY:
        raise UsageError(
            f"there is nothing to tune with --accept {settings.accept}", "Tune an exact rule: rejection or match."
        )
    settings = replace(settings, draft_tokens=AUTO, draft_min_p=0.0, max_tokens=_ANSWER, ctx=settings.ctx or _CONTEXT)
    validate(settings)
    pair = check_pair(settings)
    if what_if is not None:
        result = _what_if(pair, settings, what_if)
    else:
        result = _measure(pair, settings, prompts, system, raw, seconds, json_)
    if json_:
        print(json.dumps(result), flush=True)
        return
    from rich.console import Console

    from specdec_cli.display.tuning_tables import tables

    console = Console(highlight=False)
    for part in tables(result):
        console.print(part)


def _what_if(pair: Pair, settings: Settings, name: str) -> dict[str, Any]:
    """The recorded acceptance under another machine's costs."""
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.models import hardware
    from specdec_cli.store import acceptance_traces as recordings
    from specdec_cli.store import tuning

    machine = hardware.load(name)
    greedy = settings.temp == 0
    if pair.draft_path is None:
        raise SpecdecError("there is no draft model", "Name one with -md.")
    path = tuning.recording_of(pair.target_path, pair.draft_path, tuning.kind_of(greedy, settings.accept))
    if path is None:
        raise SpecdecError(
            f"nothing is recorded of this pair {'at temperature 0' if greedy else f'with --accept {settings.accept}'}",
            "Run specdec tune on it once, on any machine, with the same --temp and --accept.",
        )
    recording = recordings.read(path)
    recording.require(pair.target_path, pair.draft_path)
    result = _result(pair, recording, machine.costs, where=f"{name}, at the costs of the models named above")
    return {
        **result,
        "hardware": {name: getattr(machine, name) for name in ("name", "description", "basis", "source")},
    }


def _measure(
    pair: Pair, settings: Settings, prompts: str | None, system: str | None, raw: bool, seconds: float, silent: bool
) -> dict[str, Any]:
    """Time, record, predict, keep."""
    from dataclasses import asdict

    from specdec_cli.decoding.errors import Interrupted, SpecdecError
    from specdec_cli.engine.loaded_models import memory_of
    from specdec_cli.engine.session import Session
    from specdec_cli.engine.tuning_run import Tuner, place_draft
    from specdec_cli.evaluation.prediction import calibrate
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.store import acceptance_traces as recordings
    from specdec_cli.store import tuning

    if pair.draft_path is None:
        raise SpecdecError("there is no draft model", "Name one with -md.")
    tuning.require_writable(pair.target_path, pair.draft_path)
    with Interrupt() as interrupt:
        try:
            with status_line("loading", silent):
                settings, placement = place_draft(pair, settings, interrupt)
                session = Session(pair, settings, interrupt, tune=False)
            with session:
                tuner = Tuner(session, prompts, system, raw, seconds)
                with status_line("timing passes and threads", silent):
                    tuner.time()
                with status_line("recording what the draft would have proposed", silent):
                    recording = tuner.record()
                kind = tuning.kind_of(recording.greedy, settings.accept)
                found = tuner.tuning({kind: calibrate(recording.answers, recording.greedy)})
                memory = [asdict(part) for part in memory_of(session)]
            if interrupt.is_set():
                raise Interrupted
        except Interrupted:
            print("specdec: interrupted; nothing was kept", file=sys.stderr)
            raise typer.Exit(interrupt.exit_code) from None
    path = tuning.save(pair.target_path, pair.draft_path, found)
    recordings.write(path.with_suffix(f".{kind}.json.gz"), recording)
    return {
        **_result(pair, recording, found.costs, where="this machine"),
        "machine": found.machine,
        "threads": found.threads,
        "threads_draft": found.threads_draft,
        "gpu_layers": found.gpu_layers,
        "gpu_layers_draft": found.gpu_layers_draft,
        "threads_tried": tuner.tried,
        "placement_tried": placement,
        "filled": tuner.filled,
        "memory": memory,
        "notes": list(session.notes),
        "kept": str(path),
    }


def _result(pair: Pair, recording: Recording, costs: Costs, where: str) -> dict[str, Any]:
    from specdec_cli.evaluation.prediction import predict, verdict
    from specdec_cli.store.json_store import to_json

    by_category = recording.by_category()
    predictions = predict(by_category, costs, recording.greedy)
    return {
        "target": pair.target_path.name,
        "draft": Path(str(pair.draft_path)).name,
        "greedy": recording.greedy,
        "recorded_tokens": sum(len(answer.stands) for answer in recording.answers),
        "costs": to_json(costs),
        "predictions": [found.to_json() for found in predictions],
        "verdict": verdict(predictions, recording.answers, costs, recording.greedy, where),
    }
