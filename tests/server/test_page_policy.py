"""The page of the server as it is written: whom it may ask, and what it may contain."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from specdec_cli.display.terminal import safe
from specdec_cli.server import endpoints
from specdec_cli.server.endpoints import chat_page

VENDORED = Path(endpoints.__file__).parent / "vendored"
LIBRARIES = (VENDORED / "libraries.js").read_text("utf-8")


def test_the_policy_lets_the_page_ask_its_own_server_and_nobody_else():
    page = chat_page()
    hashes = {}
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes[tag] = b64encode(sha256(inside.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "connect-src 'self'; require-trusted-types-for 'script'; base-uri 'none'; form-action 'none'"
    )
    assert LIBRARIES in page
    page = page.replace(LIBRARIES, "")
    assert not re.search(r"https?:/|//\w|url\(|@import|\ssrc=|\shref=| on\w+=| style=", page.replace("// ", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|eval\(|cookie", page)


def test_the_libraries_are_small_have_their_licences_and_cannot_end_their_script():
    assert len(LIBRARIES) < 250_000 and safe(LIBRARIES) == LIBRARIES
    assert not re.search("<!--|</?script", LIBRARIES, re.IGNORECASE)
    assert not re.search(r"\beval\(|new Function|fetch\(|XMLHttpRequest", LIBRARIES)
    licences = (VENDORED / "LICENSES.txt").read_text("utf-8")
    for name, version in json.loads((VENDORED / "package.json").read_text())["devDependencies"].items():
        assert name == "esbuild" or f"== {name} {version}\n" in licences
