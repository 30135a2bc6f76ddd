"""`specdec show`: details of one pair."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli.cli import completion
from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_json, print_parts


def show(
    name: Annotated[str, typer.Argument(help="A profile.", autocompletion=completion.pairs)],
    sources: Annotated[
        bool, typer.Option("--sources", help="Also show where its figures come from, and when they were checked.")
    ] = False,
    json_: opt.Json = False,
) -> None:
    from specdec_cli.display.pair_tables import details_table
    from specdec_cli.pairs.pair_list import pair_details

    details = pair_details(name)
    if json_:
        print_json(details.profile, details.summary)
    else:
        print_parts(details_table(details, sources))
