"""The page of the server: a chat in a browser that shows where each token came from."""

import functools
from pathlib import Path

from specdec_cli.display.pages import scripted_page

_SCRIPTS = (
    "tokens.js",
    "vendored/libraries.js",
    "chat_markdown.js",
    "chat_answer.js",
    "chat_kept.js",
    "chat_page.js",
)


@functools.cache
def chat_page() -> str:
    """The whole page. It asks the server that it came from, and nobody else."""
    return scripted_page("chat_page", _SCRIPTS, Path(__file__).parent)
