"""A page in headless Chromium whose buttons and keys a test presses, over the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
_KEYS = {
    " ": ("Space", 32), "ArrowLeft": ("ArrowLeft", 37), "ArrowRight": ("ArrowRight", 39), "Tab": ("Tab", 9),
    "Enter": ("Enter", 13), "Escape": ("Escape", 27),
}  # fmt: skip


class Tab:
    """One tab, under the policy of its page. complaints: what the page was refused, and errors of its script."""

    def __init__(self, folder: Path) -> None:
        found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
        if not found:
            pytest.fail("no Chromium to look at the page with: install the package chromium (or google-chrome)")
        self.folder, self.complaints, self.requests = folder, [], []
        ours, theirs = socket.socketpair()  # Chromium reads commands from descriptor 3 and answers on 4
        theirs.set_inheritable(True)
        flags = [*_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            [found[0], *flags],
            preexec_fn=lambda: (os.dup2(theirs.fileno(), 3), os.dup2(theirs.fileno(), 4)),  # noqa: PLW1509
            close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        ours.settimeout(60)
        self._socket, self._buffer, self._id, self._session = ours, b"", 0, {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = {}
        self.call("Browser.close")
        self._process.wait(60)
        self._socket.close()
        shutil.rmtree(self.folder / "profile", ignore_errors=True)

    def call(self, method: str, **params: Any) -> Any:
        self._id += 1
        message = {"id": self._id, "method": method, "params": params, **self._session}
        self._socket.sendall(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._id:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while (end := self._buffer.find(b"\0")) < 0:
            part = self._socket.recv(1 << 16)
            assert part, "Chromium has ended"
            self._buffer += part
        message, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(event["params"]["exceptionDetails"])
            case "Log.entryAdded":
                self.complaints.append(event["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])

    def open(self, html: str, width: int = 1200, height: int = 800, dark: bool = False, scripts: bool = True) -> None:
        file = self.folder / "page.html"
        file.write_text(html, "utf-8")
        self.visit(file.as_uri(), width, height, dark, scripts)

    def visit(self, url: str, width: int = 1200, height: int = 800, dark: bool = False, scripts: bool = True) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=colours)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.protocol === '{url.partition(':')[0]}:'")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; the page's policy does not concern it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until a JavaScript expression is true."""
        ends = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < ends, f"never {expression}"
            time.sleep(0.02)

    def point(self, selector: str) -> tuple[float, float]:
        """Put the mouse on an element, which must be in view and not covered."""
        found = json.dumps(selector)
        x, y = self.ask(
            f"(() => {{ const box = document.querySelector({found}).getClientRects()[0];"
            "return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        at = f"document.elementFromPoint({x}, {y})?.closest({found}) === document.querySelector({found})"
        assert self.ask(at), f"{selector} cannot be seen"
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        x, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        code, number = _KEYS[key]
        text = {"text": {"Enter": "\r"}.get(key, key)} if key in (" ", "Enter") else {}
        same = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
