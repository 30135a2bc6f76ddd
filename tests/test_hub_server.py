"""The local Hub, asked by the real huggingface_hub."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer
from huggingface_hub import HfApi, constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

NAME, MODEL = "org/name", "model-Q4_K_M.gguf"
DATA = bytes(range(256)) * 2000
FILES = {MODEL: DATA, "README.md": b"# A model\n", "split/part.gguf": b"GGUF part"}
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(params=[None, "localhost"], ids=["one host", "two hosts"])
def hub(request: pytest.FixtureRequest) -> Iterator[HubServer]:
    with HubServer(cdn_host=request.param) as hub:
        hub.add(NAME, FILES)
        yield hub


def fetch(hub: HubServer, folder: Path, name: str = MODEL, token: str | bool = False, **options: str | bool) -> Path:
    return Path(hf_hub_download(NAME, name, cache_dir=folder, endpoint=hub.endpoint, token=token, **options))


def test_listings(hub: HubServer) -> None:
    api = HfApi(hub.endpoint, token=False)
    info = api.model_info(NAME, files_metadata=True)
    model = {sibling.rfilename: sibling for sibling in info.siblings}[MODEL]
    assert (model.size, model.lfs.sha256) == (len(DATA), SHA256)
    assert (info.sha, info.card_data.license, info.gated) == (hub.repos[NAME].main, "apache-2.0", False)
    assert api.model_info(NAME, revision=info.sha).siblings[0].size is None


def test_download(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "source.gguf").write_bytes(DATA)
    hub.add(NAME, FILES | {MODEL: tmp_path / "source.gguf"})
    metadata = get_hf_file_metadata(hf_hub_url(NAME, MODEL, endpoint=hub.endpoint), token=False)
    assert (metadata.size, metadata.etag, metadata.commit_hash) == (len(DATA), SHA256, hub.repos[NAME].main)
    path = fetch(hub, tmp_path, token=hub.token)
    assert path.read_bytes() == DATA and path.resolve().name == SHA256
    assert hub.served == hub.served_of(NAME, MODEL) == len(DATA)
    # The token stays with its host.
    assert [request.token for request in hub.requests if request.file] == [None if hub.cdn_host else hub.token]
    assert fetch(hub, tmp_path, "README.md").read_bytes() == FILES["README.md"]


def test_ranges(hub: HubServer) -> None:
    address = hf_hub_url(NAME, MODEL, endpoint=hub.endpoint)

    def read(span: str) -> bytes:
        return urllib.request.urlopen(urllib.request.Request(address, headers={"Range": f"bytes={span}"})).read()

    assert read("300-899") == DATA[300:900] and read("511900-") == DATA[511900:] and read("-5") == DATA[-5:]
    assert next((request.range, request.sent) for request in hub.requests if request.file) == ("bytes=300-899", 600)
    with pytest.raises(urllib.error.HTTPError, match="416"):
        read("999999-")
    hub.ranges = False
    assert read("300-899") == DATA


def test_refusals(hub: HubServer, tmp_path: Path) -> None:
    def refused(error: type[errors.HfHubHTTPError], status: int, name: str = MODEL, **options: str | bool) -> None:
        with pytest.raises(error) as caught:
            fetch(hub, tmp_path, name, **options)
        assert (type(caught.value), caught.value.response.status_code) == (error, status)

    refused(errors.RemoteEntryNotFoundError, 404, "absent.gguf")
    refused(errors.RevisionNotFoundError, 404, revision="other")
    refused(errors.HfHubHTTPError, 401, token="hf_bad")
    hub.add(NAME, FILES, private=True)
    refused(errors.RepositoryNotFoundError, 401)
    hub.add(NAME, FILES, gated="manual")
    refused(errors.GatedRepoError, 401)
    refused(errors.GatedRepoError, 403, token=hub.token)
    assert HfApi(hub.endpoint, False).model_info(NAME).gated == "manual"
    hub.granted.add(NAME)
    assert fetch(hub, tmp_path, token=hub.token).exists()
    with pytest.raises(errors.RepositoryNotFoundError, match="404"):
        HfApi(hub.endpoint, hub.token).model_info("org/absent")


def test_faults(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    hub.fail("HEAD", times=2)
    hub.fail(lambda line: line.startswith("GET /cdn/"), 429, headers={"Retry-After": "7"})
    hub.cut(MODEL, after=200_000)
    # It keeps whole chunks only, of 10 MiB, of what came before a cut.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    assert fetch(hub, tmp_path).read_bytes() == DATA
    assert naps == [1, 8, 1] and not hub.faults
    contents = [(request.range, request.sent) for request in hub.requests if request.file]
    assert contents == [(None, 200_000), ("bytes=200000-", len(DATA) - 200_000)]
    hub.truncate("/cdn/", by=10)
    with pytest.raises(OSError, match="Consistency check failed"):
        fetch(hub, tmp_path, force_download=True)
    hub.alter("/cdn/", at=3)
    assert fetch(hub, tmp_path, force_download=True).read_bytes() == DATA[:3] + b"\x02" + DATA[4:]


def test_close_ends_a_stall(hub: HubServer) -> None:
    hub.stall("README", seconds=60, after=3)
    answer = urllib.request.urlopen(hf_hub_url(NAME, "README.md", endpoint=hub.endpoint), timeout=5)
    assert answer.read(3) == b"# A"
    hub.close()
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
