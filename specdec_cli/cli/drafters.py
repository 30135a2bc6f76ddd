"""`specdec drafters`: what can draft, what it takes, and when it is of use."""

from __future__ import annotations

from typing import Annotated

import typer


def drafters(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the drafters: what each needs and when it helps. Packages can bring more."""
    from rich.console import Console

    from specdec_cli.cli.json_output import print_json
    from specdec_cli.display.grids import lines_table
    from specdec_cli.drafters import names

    known = [_described(name) for name in names()]
    if json_:
        print_json({"drafters": known})
        return
    console = Console(highlight=False)
    for drafter in known:
        name, origin = drafter.pop("name"), drafter.pop("from")
        console.print(name if origin == "specdec" else f"{name} (from {origin})", style="bold", markup=False)
        console.print(lines_table(drafter))
    console.print(
        "\nOne after the other:  ngram+model     One that drafts for another:  model<ngram, small>model", style="dim"
    )


def _described(name: str) -> dict[str, str]:
    """A drafter of any package. One that does not load is listed all the same, with its problem."""
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.drafters import origin, spec

    drafter = {"name": name, "from": origin(name), "needs": "", "helps": "", "problem": ""}
    try:
        about = spec(name)
        return {**drafter, "needs": about.needs, "helps": about.helps}
    except (UsageError, AttributeError) as error:
        return {**drafter, "problem": str(error)}
