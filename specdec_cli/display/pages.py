"""What pages share: colours, and how they are made of the templates that lie in a folder."""

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
"""Name -> (on light, on dark): Okabe and Ito's palette for the colour-blind, shaded to 3:1 against the page, and from
`accepted` on, for text, to 4.5:1. A page defines each as the CSS variable `--name`.
"""


def render(template: str, folder: Path = _HERE, **values: object) -> str:
    """Every value is escaped, a name that is missing is an error, and control characters are shown, not obeyed.

    folder: where the template is; what it includes may be here, too.
    """
    return safe(_environment(folder).get_template(template).render(colours=COLOURS, **values))


def scripted_page(name: str, scripts: Sequence[str], folder: Path = _HERE, **values: object) -> str:
    """A page of NAME.html that its policy lets have the style of NAME.css, and one script made of these files."""
    sources = (_source(folder / script) for script in scripts)
    script, styles = Markup("".join(sources)), Markup(render(f"{name}.css", folder, **values))
    return render(f"{name}.html", folder, styles=styles, script=script, hash=_hash, **values)


def _source(path: Path) -> str:
    return (path if path.exists() else _HERE / path.name).read_text("utf-8")


def _hash(text: str) -> str:
    """What a page's own policy knows its script and its style by."""
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
