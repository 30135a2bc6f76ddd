"""The bundled pair on a Hub on loopback, and `specdec pull` asked for it: as a process of its own, or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ggufs
import pytest
from driver import DRAFT, TARGET, assert_refused, call, specdec, start
from gguf_models import Model
from hub_server import HubServer, Repo, Request

from specdec_cli.gguf.reader import read_header
from specdec_cli.pairs import profiles, references
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel, resolve

BIG, SMALL = "org/target-GGUF", "org/draft-GGUF"
BIG_FILE, SMALL_FILE = "target-Q4_K_M.gguf", "draft-Q8_0.gguf"
PAIR = ("--target", f"{BIG}:Q4_K_M", "--draft", f"{SMALL}:Q8_0")
NAME = "target-Q4_K_M+draft-Q8_0"
NEAR = "bartowski/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"
FAR = "bartowski/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0"
"""Two drafts that the table of families has for Qwen2.5."""
SIZES = TARGET.stat().st_size, DRAFT.stat().st_size
WINDOW = 256 << 10
"""What the header of either costs at most: one request, of whose answer no more is read than is needed."""


def publish(hub: HubServer) -> HubServer:
    for name, repo in _repos().items():
        hub.repos[name] = replace(repo, commits={commit: dict(files) for commit, files in repo.commits.items()})
    return hub


@cache
def _repos() -> dict[str, Repo]:
    """Read and hashed once for all tests."""
    with HubServer() as hub:
        hub.add(BIG, {BIG_FILE: TARGET, "README.md": b"# Big\n"})
        hub.add(SMALL, {SMALL_FILE: DRAFT})
        return hub.repos


def publish_family(hub: HubServer, target: str, folder: Path) -> None:
    """A target that calls itself a Qwen2.5 and, of the four drafts for it in the table: one as large as the bundled
    one, one smaller, one that does not fit; the fourth is missing.
    """
    hub.add(target, {BIG_FILE: _as_qwen(TARGET)})
    hub.add(FAR.partition(":")[0], {"Qwen2.5-Coder-0.5B-Instruct-Q8_0.gguf": _as_qwen(DRAFT)})
    hub.add(NEAR.partition(":")[0], {"Qwen2.5-0.5B-Instruct-Q4_K_M.gguf": _as_qwen(DRAFT, n_tensors=6)})
    unfit = _as_qwen(with_other_words(folder))
    hub.add("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", {"qwen2.5-coder-0.5b-instruct-q8_0.gguf": unfit})


def _as_qwen(path: Path, n_tensors: int | None = None) -> bytes:
    model = Model(path.read_bytes())
    model.rename("qwen2")
    model.set("tokenizer.ggml.pre", ggufs.STRING, "qwen2")
    model.tensors = model.tensors[:n_tensors]
    return model.raw()


def own_profile(name: str, text: str) -> Path:
    """A profile of the user's. Returns its folder."""
    folder = profiles.config_dir() / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    return folder


def with_other_words(folder: Path) -> Path:
    """A draft of whose tokenizer one token, number 300, is another."""
    size = len(read_header(DRAFT).metadata["tokenizer.ggml.tokens"].values[300])
    return ggufs.with_token(DRAFT, folder / "other.gguf", 300, b"~" * size)


def with_other_tokenizer(folder: Path) -> Path:
    """The same, and nobody knows what its tokens stand for."""
    path = with_other_words(folder)
    model = Model(path.read_bytes())
    model.set("tokenizer.ggml.model", ggufs.STRING, "bert")
    path.write_bytes(model.raw())
    return path


def environment(hub: HubServer, folder: Path, **more: str) -> dict[str, str]:
    """For a process: this Hub, a cache in `folder`, and nobody's token."""
    own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    own |= {"XDG_CONFIG_HOME": str(folder / "config"), "NO_PROXY": "127.0.0.1,localhost", "TERM": "xterm"}
    return os.environ | own | more


def pull(
    hub: HubServer, folder: Path, *args: object, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    return specdec("pull", *args, env=environment(hub, folder, **(env or {})), **options)


def pulled(hub: HubServer, folder: Path, *args: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What a pull that succeeds says of itself."""
    done = pull(hub, folder, *args, "--json", env=env)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return json.loads(done.stdout)


def begin(hub: HubServer, folder: Path, *args: object, **options: Any) -> subprocess.Popen[bytes]:
    return start("pull", *args, env=environment(hub, folder), **options)


def here(monkeypatch: pytest.MonkeyPatch, hub: HubServer, folder: Path) -> list[float]:
    """Turn this process's huggingface_hub to a Hub and a cache of a test's own. The waits given are not waited."""
    from huggingface_hub import constants

    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    _leave_proxies()
    return naps


@cache
def _leave_proxies() -> None:
    """What was opened before may go through one. Once is enough: opening anew takes its time."""
    from huggingface_hub import close_session

    close_session()


def planned() -> tuple[RemoteModel, RemoteFile]:
    """The target and its file, as the Hub of this process has them."""
    reference = references.parse(PAIR[1])
    assert reference is not None
    model = resolve(reference)
    return model, model.files[0]


def pull_here(*args: object) -> Any:
    return call("pull", *args, "--json")


def pulled_here(*args: object) -> dict[str, Any]:
    result = pull_here(*(args or PAIR))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused_here(folder: Path, *says: str, args: tuple[object, ...] = PAIR, code: int = 4) -> str:
    """A pull in this process that fails: its two lines, and nothing left that looks like a pair."""
    result = pull_here(*args)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert_refused(result, code, *says)
    assert_nothing_kept(folder)
    return result.stderr


def assert_nothing_kept(folder: Path) -> None:
    """In the cache no file that anything would take for a model; no record or profile, unless `rm` has to know of an
    unfinished download.
    """
    config = folder / "config"
    assert begun(folder) or [path for path in config.rglob("*") if path.is_file()] == []
    assert files(folder) == []


def files(folder: Path) -> list[str]:
    """The models in the cache, as whoever uses them finds them."""
    return sorted(path.name for path in (folder / "hf" / "hub").glob("models--*/snapshots/*/**/*.gguf"))


def records(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "config" / "specdec" / "pulled").iterdir())


def begun(folder: Path) -> int:
    """Bytes of an unfinished download."""
    return sum(path.stat().st_size for path in (folder / "hf" / "hub").glob("models--*/blobs/*.incomplete"))


def of_header(request: Request) -> bool:
    """Headers are asked for in windows, weights to the end of the file."""
    return request.range is not None and not request.range.endswith("-")


def weights(hub: HubServer, name: str = "") -> int:
    """Bytes served of a file, or of all, but for those asked for as a header."""
    found = [request for request in hub.requests if request.file and request.file.endswith(name)]
    return sum(request.sent for request in found if not of_header(request))


def content(hub: HubServer, name: str, number: int = 2, times: int = 1) -> Callable[[str], bool]:
    """A judge of requests for a file's content, from the so-many-th on: the first is for its header."""

    def judge(line: str) -> bool:
        asked = [request.path for request in hub.log if request.method == "GET"]
        count = sum(path.startswith("/cdn/") and path.endswith(name) for path in asked)
        return line.startswith("GET /cdn/") and line.endswith(name) and number <= count < number + times

    return judge


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[bytes] | None = None, seconds: float = 60
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s"
        assert process is None or process.poll() is None, "the process has ended"
        time.sleep(0.01)
