"""`--json`: one object in one line on stdout."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def print_json(*results: object, indent: int | None = None) -> None:
    """Print the fields of results, all in one object."""
    fields: dict[str, Any] = {}
    for result in results:
        fields |= msgspec.to_builtins(result, enc_hook=str)
    print(json.dumps(fields, indent=indent), flush=True)
