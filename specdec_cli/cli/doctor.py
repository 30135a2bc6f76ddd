"""`specdec doctor`: checks the installation, and says how to improve it."""

from __future__ import annotations

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_json


def doctor(json_: opt.Json = False) -> None:
    from specdec_cli.display.diagnosis_table import print_diagnosis
    from specdec_cli.measure.doctor import diagnose

    diagnosis = diagnose()
    if json_:
        print_json(diagnosis, indent=2)
    else:
        print_diagnosis(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)
