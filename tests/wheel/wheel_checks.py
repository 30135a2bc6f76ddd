"""What `run` beside this file asks of a wheel and of a server, with nothing but the standard library.

`wheel_checks.py contents WHEEL CHECKOUT`: the bundled files and licences are inside, and it is small.
`wheel_checks.py server URL`: it answers, and shows its page.
"""

import json
import sys
from pathlib import Path
from urllib.request import Request, urlopen
from zipfile import ZipFile

MOST_BYTES = 13_000_000
LEFT_OUT = {"specdec_cli/profiles/demo/eagle3.gguf", "specdec_cli/profiles/demo/medusa.gguf"}
WAIT_S = 60


def check_contents(wheel: Path, checkout: Path) -> None:
    """It holds the files of the package and of the profiles, but for the heads, and no others."""
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.1f} MB")
    if size >= MOST_BYTES:
        sys.exit(f"it must be under {MOST_BYTES / 1e6:.0f} MB")
    with ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    about = {name for name in inside if name.split("/")[0].endswith(".dist-info")}
    package = files(checkout / "specdec_cli", checkout)
    profiles = {f"specdec_cli/{name}" for name in files(checkout / "profiles", checkout)}
    wanted = (package | profiles) - LEFT_OUT
    if lacking := wanted - inside:
        sys.exit(f"it lacks {sorted(lacking)}")
    if foreign := inside - wanted - about:
        sys.exit(f"it should not hold {sorted(foreign)}")
    if (name := "specdec_cli/profiles/demo/LICENSES.md") not in inside:
        sys.exit(f"it lacks {name}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in about):
        sys.exit("it lacks its own licence")


def files(folder: Path, checkout: Path) -> set[str]:
    return {
        path.relative_to(checkout).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_server(url: str) -> None:
    """Its health, an answer, and the page with what it is made of."""
    health = json.loads(asked(f"{url}/health"))
    if health != {"status": "ok"}:
        sys.exit(f"/health says {health}")
    answer = json.loads(asked(f"{url}/v1/completions", {"prompt": "def add(a, b):", "max_tokens": 16}))
    print(answer)
    if not answer["choices"][0]["text"].strip() or answer["usage"]["completion_tokens"] < 1:
        sys.exit("the answer is empty")
    page = asked(f"{url}/")
    if "</html>" not in page or "<style>" not in page or "<script" not in page:
        sys.exit(f"this is no page: {page[:200]!r}")


def asked(url: str, body: object = None) -> str:
    """What the server answers; raises HTTPError if it refuses."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=WAIT_S) as response:
        return str(response.read().decode())


if __name__ == "__main__":
    if sys.argv[1] == "contents":
        check_contents(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        check_server(sys.argv[2])
