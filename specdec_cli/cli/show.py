"""`specdec show`: everything about one pair."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli import completion


def show(
    name: Annotated[str, typer.Argument(help="A profile.", autocompletion=completion.pairs)],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell everything about one pair: why these two, sizes, licence, sampling, where its figures come from."""
    from rich.console import Console

    from specdec_cli.cli.json_output import print_json
    from specdec_cli.display.pair_tables import details_table
    from specdec_cli.engine.pair_list import pair_details

    details = pair_details(name)
    if json_:
        print_json(details.profile, details.summary)
    else:
        Console(highlight=False).print(details_table(details))
