"""Colours and templates of all HTML pages."""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specdec_cli.display.terminal import safe

_HERE = Path(__file__).parent

COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1c1f24", "#e6e8eb"),
    "soft": ("#5c636e", "#a3abb6"),
    "line": ("#d4d8de", "#3a414b"),
    "band": ("#f4f5f7", "#1e2228"),
    "paper": ("#fefefe", "#15181d"),
    "blue": ("#0072b2", "#4ba3de"),
    "vermillion": ("#d55e00", "#f0803c"),
    "green": ("#00936b", "#2cc295"),
    "orange": ("#b87b00", "#f0b429"),
    "accepted": ("#006b4e", "#5fd6b0"),
    "correction": ("#8f5400", "#f5bf57"),
    "bonus": ("#00639c", "#7cc4f5"),
    "slower": ("#ad4a00", "#f0803c"),
    "tint": ("#d9f0e7", "#17382f"),
}
"""Name -> (light theme, dark theme): Okabe and Ito's palette for colour-blind readers. The contrast with the page is at
least 3:1, and 4.5:1 for text colours (from `accepted` on). Pages define each colour as the CSS variable `--name`.
"""


def render(template: str, folder: Path = _HERE, **values: object) -> str:
    """Render a template. Values are escaped, and control characters become visible. A missing value is an error.

    folder: the template's. It can include templates of this folder too.
    """
    return safe(_environment(folder).get_template(template).render(colours=COLOURS, **values))


def scripted_page(name: str, scripts: Sequence[str], folder: Path = _HERE, **values: object) -> str:
    """Render NAME.html with the style of NAME.css and one script, joined from these files. Other scripts and styles are
    forbidden by the page's security policy.
    """
    sources = (_source(folder / script) for script in scripts)
    script, styles = Markup("".join(sources)), Markup(render(f"{name}.css", folder, **values))
    return render(f"{name}.html", folder, styles=styles, script=script, hash=_hash, **values)


def _source(path: Path) -> str:
    return (path if path.exists() else _HERE / path.name).read_text("utf-8")


def _hash(text: str) -> str:
    """The hash by which the security policy of a page allows its script or its style."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


@functools.cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
