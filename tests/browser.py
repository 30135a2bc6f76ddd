"""A page in headless Chromium: what it looks like, and how it is laid out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from devtools import Tab
from PIL import Image


class Browser:
    """Headless Chromium, started anew for each question about one page, which is in a folder of its own."""

    def __init__(self, folder: Path, html: str) -> None:
        self.folder, self.html = folder, html

    @contextmanager
    def _opened(self, width: int, dark: bool = False) -> Iterator[Tab]:
        tab = Tab(self.folder)
        try:
            tab.open(self.html, width, 1600, dark)
            yield tab
        finally:
            tab.close()

    def screenshot(self, width: int, dark: bool = False) -> Image.Image:
        with self._opened(width, dark) as tab, Image.open(BytesIO(tab.screenshot())) as image:
            return image.convert("L")

    def ask(self, expression: str, width: int) -> str:
        """The value of a JavaScript expression once the page is laid out."""
        with self._opened(width) as tab:
            return f"answer={tab.ask(expression)}"
