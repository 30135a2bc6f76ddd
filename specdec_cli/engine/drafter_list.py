"""The drafters there are, for people: what each needs and when it helps."""

from __future__ import annotations

from specdec_cli import drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.results import DrafterSummary


def list_drafters() -> list[DrafterSummary]:
    """All drafters, those of other packages last. One that does not load is listed with its problem."""
    summaries = []
    for name in drafters.names():
        try:
            spec = drafters.spec(name)
            about = spec.needs, spec.helps, ""
        except (UsageError, AttributeError) as error:  # the others are listed all the same
            about = "", "", str(error)
        summaries.append(DrafterSummary(name, drafters.origin(name), *about))
    return summaries
