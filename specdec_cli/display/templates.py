"""How pages are made of their templates, which lie beside this file."""

from __future__ import annotations

import functools
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from specdec_cli.display.safe_streams import safe


def render(template: str, **values: object) -> str:
    """Every value is escaped, a name that is missing is an error, and control characters are shown, not obeyed."""
    return safe(_environment().get_template(template).render(values))


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
