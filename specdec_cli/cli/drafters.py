"""`specdec drafters`: what can draft, what it takes, and when it is of use."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def drafters(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the drafters: what each needs and when it helps. Packages can bring more."""
    from rich.console import Console

    from specdec_cli import drafters as known
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.display.pair_tables import profile_table

    found: list[dict[str, Any]] = []
    for name in known.names():
        about = {"name": name, "from": known.origin(name)}
        try:
            kind = known.spec(name)
            found.append({**about, "needs": kind.needs, "helps": kind.helps, "problem": ""})
        except (UsageError, AttributeError) as error:  # somebody's package: the others are listed all the same
            found.append({**about, "needs": "", "helps": "", "problem": str(error)})
    if json_:
        print(json.dumps({"drafters": found}), flush=True)
        return
    console = Console(highlight=False)
    for drafter in found:
        ours = "" if drafter["from"] == "specdec" else f" (from {drafter['from']})"
        lines = {"needs": drafter["needs"], "helps": drafter["helps"], "problem": drafter["problem"]}
        console.print(drafter["name"] + ours, style="bold", markup=False)
        console.print(profile_table(lines))
    console.print(
        "\nOne after the other:  ngram+model     One that drafts for another:  model<ngram, small>model", style="dim"
    )
