"""The page of the server: a chat in a browser that shows where each token came from."""

from __future__ import annotations

import functools

from specdec_cli.display.charts import COLOURS
from specdec_cli.display.templates import render, scripted_page


@functools.cache
def chat_page() -> str:
    """The whole page. It asks the server that it came from, and nobody else."""
    scripts = ("tokens.js", "chat_answer.js", "chat_page.js")
    return scripted_page("chat_page.html", render("chat_page.css", colours=COLOURS), scripts)
