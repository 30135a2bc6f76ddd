"""`specdec drafters`: what can draft, what it takes, and when it is of use."""

from __future__ import annotations

from dataclasses import astuple

from specdec_cli.cli import options as opt


def drafters(json_: opt.Json = False) -> None:
    """List the drafters: what each needs and when it helps. Packages can bring more."""
    from rich.markup import escape

    from specdec_cli.cli.output import print_json, print_parts
    from specdec_cli.display.grids import lines_table
    from specdec_cli.engine.drafter_list import list_drafters

    known = list_drafters()
    if json_:
        keys = ("name", "from", "needs", "helps", "problem")
        print_json({"drafters": [dict(zip(keys, astuple(drafter), strict=True)) for drafter in known]})
        return
    for drafter in known:
        origin = "" if drafter.origin == "specdec" else f" (from {drafter.origin})"
        print_parts(escape(drafter.name + origin), style="bold")
        print_parts(lines_table({"needs": drafter.needs, "helps": drafter.helps, "problem": drafter.problem}))
    print_parts(
        "\nOne after the other:  ngram+model     One that drafts for another:  model<ngram, small>model", style="dim"
    )
