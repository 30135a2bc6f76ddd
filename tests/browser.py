"""Headless Chromium for tests of pages: what a page looks like, and how it is laid out."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
from PIL import Image


class Browser:
    """Headless Chromium on one page, which is in a folder of its own."""

    FLAGS = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage",
    )  # fmt: skip

    def __init__(self, folder: Path, html: str) -> None:
        found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
        if not found:
            pytest.fail("no Chromium to look at the page with: install the package chromium (or google-chrome)")
        self.program, self.folder, self.html = found[0], folder, html

    def _run(self, html: str, width: int, dark: bool, *flags: str) -> str:
        file = self.folder / "page.html"
        file.write_text(html, "utf-8")
        colours = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        done = subprocess.run(
            [self.program, *self.FLAGS, f"--user-data-dir={self.folder}", f"--window-size={width},1600", colours,
             *flags, file.as_uri()],
            capture_output=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.decode()

    def screenshot(self, width: int, dark: bool = False) -> Image.Image:
        file = self.folder / "shot.png"
        self._run(self.html, width, dark, f"--screenshot={file}")
        with Image.open(file) as image:
            return image.convert("L")

    def dom(self, width: int = 1150) -> str:
        return self._run(self.html, width, False, "--dump-dom")

    def ask(self, expression: str, width: int) -> str:
        """The value of a JavaScript expression once the page is laid out.

        In a frame, as no window is as narrow as a phone; without the page's own policy, which forbids scripts.
        """
        html = re.sub(r"<meta http-equiv=[^>]*>", "", self.html)
        script = f"<script>onload = () => {{ parent.document.title = 'answer=' + ({expression}) }}</script></body>"
        inner = escape(html.replace("</body>", script))
        frame = f'<iframe style="border: 0; width: {width}px; height: 1600px" srcdoc="{inner}"></iframe>'
        dom = self._run(f"<!DOCTYPE html><title>none</title><body>{frame}</body>", 1250, False, "--dump-dom")
        return re.search(r"<title>(.*?)</title>", dom).group(1)
