"""How pages are made of their templates, which lie beside this file."""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specdec_cli.display.terminal import safe


def render(template: str, **values: object) -> str:
    """Every value is escaped, a name that is missing is an error, and control characters are shown, not obeyed."""
    return safe(_environment().get_template(template).render(values))


def scripted_page(template: str, styles: str, scripts: Sequence[str], **values: object) -> str:
    """A page whose policy lets it have these styles and run these files, as one script, and nothing else."""
    script = "".join(Path(__file__).with_name(name).read_text("utf-8") for name in scripts)
    return render(template, styles=Markup(styles), script=Markup(script), hash=_hash, **values)


def _hash(text: str) -> str:
    """What a page's own policy knows its script and its style by."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
