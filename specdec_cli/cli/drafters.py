"""`specdec drafters`: what can draft, what it takes, and when it is of use."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated

import typer


def drafters(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the drafters: what each needs and when it helps. Packages can bring more."""
    from rich.console import Console

    from specdec_cli.cli.json_output import print_json
    from specdec_cli.display.grids import lines_table
    from specdec_cli.engine.drafter_list import list_drafters

    known = list_drafters()
    if json_:
        keys = ("name", "from", "needs", "helps", "problem")
        print_json({"drafters": [dict(zip(keys, astuple(drafter), strict=True)) for drafter in known]})
        return
    console = Console(highlight=False)
    for drafter in known:
        origin = "" if drafter.origin == "specdec" else f" (from {drafter.origin})"
        console.print(drafter.name + origin, style="bold", markup=False)
        console.print(lines_table({"needs": drafter.needs, "helps": drafter.helps, "problem": drafter.problem}))
    console.print(
        "\nOne after the other:  ngram+model     One that drafts for another:  model<ngram, small>model", style="dim"
    )
