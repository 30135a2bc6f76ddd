"""`specdec drafters`: what can draft, what it takes, and when it is of use."""

from __future__ import annotations

from typing import Annotated

import typer


def drafters(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the drafters: what each needs and when it helps. Packages can bring more."""
    from rich.console import Console

    from specdec_cli.cli.json_output import print_json
    from specdec_cli.display.pair_tables import lines_table
    from specdec_cli.engine.drafter_list import list_drafters

    found = list_drafters()
    if json_:
        fields = ("name", "needs", "helps", "problem")
        print_json(
            {"drafters": [{"from": drafter.origin, **{f: getattr(drafter, f) for f in fields}} for drafter in found]}
        )
        return
    console = Console(highlight=False)
    for drafter in found:
        origin = "" if drafter.origin == "specdec" else f" (from {drafter.origin})"
        console.print(drafter.name + origin, style="bold", markup=False)
        console.print(lines_table({"needs": drafter.needs, "helps": drafter.helps, "problem": drafter.problem}))
    console.print(
        "\nOne after the other:  ngram+model     One that drafts for another:  model<ngram, small>model", style="dim"
    )
