"""Results as HTML in a notebook's cell."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from time import monotonic
from typing import Any

from markupsafe import Markup, escape

from specdec_cli.decoding.types import Origin, Token
from specdec_cli.decoding.wording import counted
from specdec_cli.display import comparison_html
from specdec_cli.display.player import underlined
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.measure.compare import ComparisonResult
from specdec_cli.user_files import format_bytes

_COLOURS: dict[Origin, str] = {"accepted": "#1a8039", "correction": "#a06000", "bonus": "#0e7a96", "forced": "#8a55e0"}
"""With a contrast of at least 4.5 to white and of 3.7 to #111: nothing tells a cell which theme its notebook has."""
_HEIGHT = 640
_REFRESH_S = 0.2


def answer(result: GenerationResult) -> str:
    """The text with each token in its colour, and a line of figures. Browsers drop a line break right after <pre>."""
    steps = [token for step in result.metrics.history for token in step.tokens]
    tail = result.text[sum(len(token.text) for token in steps) :]
    tokens = [*map(_token, steps), escape(tail)]
    cell = Markup('<div><pre style="white-space: pre-wrap">\n{}</pre><small>{}</small></div>')
    return str(cell.format(Markup("").join(tokens), _figures(result)))


def _token(token: Token) -> Markup:
    colour = _COLOURS.get(token.origin)
    if not colour:
        return escape(token.text)
    text = underlined(token.text) if token.origin == "bonus" else token.text
    return Markup('<span style="color: {}" title="{}">{}</span>').format(colour, token.origin, text)


def _figures(result: GenerationResult) -> str:
    metrics = result.metrics
    parts = [str(result.error)] if result.error else []
    parts.append(counted(metrics.emitted, "token"))
    parts += [f"{metrics.tokens_per_s:.1f} tokens/s"] if metrics.tokens_per_s else []
    if metrics.drafted and metrics.acceptance_rate is not None:
        parts.append(f"{metrics.acceptance_rate:.0%} of draft tokens accepted")
        parts += [f"{metrics.tokens_per_step:.2f} tokens per step"] if metrics.tokens_per_step else []
    parts += [f"{result.speedup:.2f}x"] if result.speedup else []
    return ", ".join(parts)


def comparison(result: ComparisonResult) -> str:
    """The page of a comparison, apart from the notebook's own styles."""
    page = comparison_html.page(result)
    style = f"width: 100%; height: {_HEIGHT}px; border: 0"
    return str(Markup('<iframe style="{}" srcdoc="{}" title="comparison"></iframe>').format(style, page))


def is_running() -> bool:
    """Whether this process computes for a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class DownloadBars(ExitStack):
    """Shows the progress of downloads as bars in a notebook's cell. Called as `hub.download.DownloadProgress`."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self._sizes = sizes
        self._done = dict.fromkeys(self._sizes, 0)
        self._cell: Any = None
        self._shown_at = 0.0

    def __call__(self, name: str, state: str, done: int) -> None:
        self._done[name] = done
        if monotonic() - self._shown_at >= _REFRESH_S:
            self._show()

    def _show(self) -> None:
        bar = Markup('<div><progress value="{}" max="{}"></progress> {}, {} of {}</div>')
        rows = [
            bar.format(done, self._sizes[name], name.rpartition("/")[2], *map(format_bytes, (done, self._sizes[name])))
            for name, done in self._done.items()
        ]
        ipython = import_module("IPython.display")
        cell = ipython.HTML(str(Markup("").join(rows)))
        if self._cell is None:
            self._cell = ipython.display(cell, display_id=True)
            self.callback(self._show)
        else:
            self._cell.update(cell)
        self._shown_at = monotonic()
