"""`specdec tune`: measures a pair on this machine once, for later `run` and `compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.terminal import status_line


@opt.takes(
    *("target", "draft", "profile", "accept", "temperature", "top_k", "top_p", "min_p", "seed", "chat_template_kwargs"),
    *("ctx", "threads", "threads_draft", "gpu_layers", "gpu_layers_draft"),
    *("lora", "lora_draft", "device", "device_draft", "tensor_split", "rpc", "rpc_insecure"),
)
def tune(
    given: opt.Given,
    prompts: Annotated[
        str | None, typer.Option(help="A suite or a file of prompts, as in compare. \\[default: a mixture]")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Roughly how long to measure.")] = 60.0,
    what_if: Annotated[str | None, opt.hardware(help="Predict for another machine instead of measuring.")] = None,
    json_: opt.Json = False,
    raw: opt.Raw = False,
    system: opt.System = None,
) -> None:
    """run and compare use what was measured."""
    from specdec_cli.display.tuning_tables import tables
    from specdec_cli.measure.tune import MeasuredTuning, TuningResult, predict_for
    from specdec_cli.measure.tune import tune as tune_pair
    from specdec_cli.pairs.config_layers import resolve

    if not 1 <= seconds <= 3600:
        raise UsageError(f"--seconds can't be {seconds:g}", "Give 1 to 3600.")
    if what_if is not None and (prompts, seconds, raw, system) != (None, 60.0, False, None):
        raise UsageError("--what-if measures nothing", "Leave out --prompts, --seconds, --raw and --system.")
    settings = resolve(given.profile, given.flags)
    result: TuningResult
    if what_if is not None:
        result = predict_for(settings, what_if)
    else:
        with interruptible("; nothing was saved") as interrupt, status_line("loading", json_) as say:
            result = tune_pair(settings, prompts, system, raw, seconds, interrupt, say)
    if json_:
        print_json(result.to_json())
    else:
        print_parts(*tables(result))
    if isinstance(result, MeasuredTuning) and not result.kept:
        raise SpecdecError(result.notes[-1], "Free some space or fix the folder, then run tune again.")
