"""How pages are made of their templates, which lie beside this file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def environment(finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Every value is escaped, and a name that is missing is an error. finalize: what each value goes through before."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
