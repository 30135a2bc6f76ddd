"""Shared by the benchmarks: prompts, a session on the bundled pair, medians, tables, the machine's description."""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specdec_cli.engine.engine import Engine
from specdec_cli.engine.session import Session
from specdec_cli.llama import library
from specdec_cli.settings.settings import Settings

DEMO = Path(__file__).parent.parent / "profiles" / "demo"
N_CTX = 1024

PROMPTS = [
    'def median(values):\n    """Return the median of a list of numbers."""\n',
    'def read_config(path):\n    """Read a configuration file and return a dictionary."""\n',
    'def is_palindrome(text):\n    """Return True if text reads the same in both directions."""\n',
    'def flatten(items):\n    """Flatten a nested list of items."""\n',
    'def parse_date(string):\n    """Parse an ISO date string and return a datetime object."""\n',
    'def count_words(path):\n    """Count the words in a file."""\n',
    'def merge_sort(items):\n    """Sort items and return a new list."""\n',
    'def matrix_multiply(a, b):\n    """Multiply two matrices given as lists of rows."""\n',
    'def download(url, path):\n    """Download url and write it to path."""\n',
]


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add options for another pair than the bundled one."""
    parser.add_argument("--target", default=str(DEMO / "target.gguf"), help="instead of the bundled one")
    parser.add_argument("--draft", default=str(DEMO / "draft.gguf"), help="instead of the bundled one")


def open_demo(variants: Sequence[Mapping[str, object]] = (), **changes: object) -> Session:
    """A session on the bundled pair, or the one in `changes`, with 1024 tokens of context and room for all variants."""
    chosen = {"target": str(DEMO / "target.gguf"), "draft": str(DEMO / "draft.gguf"), "ctx": N_CTX, **changes}
    settings = Settings(**{"drafter": "model", "max_tokens": 128, **chosen})  # type: ignore[arg-type]
    session = Engine(settings).session()
    session.open(1, [replace(settings, **variant) for variant in variants])  # type: ignore[arg-type]
    return session


def median_and_spread(values: Iterable[float]) -> tuple[float, float, float]:
    """The median and the quartiles."""
    found = sorted(values)
    if len(found) < 2:
        return found[0], found[0], found[0]
    low, middle, high = statistics.quantiles(found, n=4)
    return middle, low, high


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; all columns but the first are aligned right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine() -> str:
    """One line about the machine and the versions."""
    bindings = library.versions()["llama-cpp-python"]
    return f"{library.machine()}, Python {platform.python_version()}, llama-cpp-python {bindings}"
