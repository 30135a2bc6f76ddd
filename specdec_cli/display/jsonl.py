"""The event stream as JSON lines: `--trace FILE`, and what `replay` reads."""

from __future__ import annotations

import json
from typing import Any, TextIO

from specdec_cli.decoding.types import Event

FORMAT = 1


class Trace:
    """Writes one line of settings, then one line an event.

    `problem` is what went wrong, if anything did: a full disk must not cost the answer.
    """

    def __init__(self, out: TextIO, settings: dict[str, Any]) -> None:
        self.problem: OSError | None = None
        self._out = out
        self._write({"event": "run", "format": FORMAT, **settings})

    def show(self, event: Event) -> None:
        """Write an event."""
        self._write(event.to_json())

    def close(self) -> None:
        """Write everything out."""
        try:
            self._out.close()
        except OSError as error:
            self.problem = self.problem or error

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._out.write(json.dumps(line) + "\n")
        except OSError as error:
            self.problem = self.problem or error
