"""The server's chat page, which shows where each token came from."""

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
    """The page as HTML. It connects only to the server that sent it."""
    return scripted_page("chat_page", _SCRIPTS, Path(__file__).parent)
