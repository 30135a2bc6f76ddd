"""`specdec drafters`: lists the drafters, what each needs and when it helps."""

from __future__ import annotations

from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import UsageError


def drafters(json_: opt.Json = False) -> None:
    from specdec_cli.display.tables import lines_table
    from specdec_cli.drafters import names

    known = [_described(name) for name in names()]
    if json_:
        print_json({"drafters": known})
        return
    for drafter in known:
        name, origin = drafter.pop("name"), drafter.pop("from")
        print_parts(name if origin == "specdec" else f"{name} (from {origin})", style="bold")
        print_parts(lines_table(drafter))
    print_parts(
        "\nOne after the other:          ngram+model\nOne that drafts for another:  model<ngram, small>model",
        style="dim",
    )


def _described(name: str) -> dict[str, str]:
    """A drafter of any package. One that doesn't load is listed with its problem."""
    from specdec_cli.drafters import origin, spec

    drafter = {"name": name, "from": origin(name), "needs": "", "helps": "", "problem": ""}
    try:
        about = spec(name)
        return {**drafter, "needs": about.needs, "helps": about.helps}
    except (UsageError, AttributeError) as error:
        return {**drafter, "problem": str(error)}
