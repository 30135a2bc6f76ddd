"""A Hub without measure: what it may cost in bytes, time, files and waits, and where it ends."""

from __future__ import annotations

import random
from pathlib import Path

import hostile_hub as tricks
import pytest
from driver import TARGET, complaint
from hostile_hub import HostileHub, Mode
from hub_pairs import (
    BIG,
    BIG_FILE,
    PAIR,
    SIZES,
    content,
    publish,
    pull,
    pull_here,
    pulled_here,
    refused_here,
)
from huggingface_hub import close_session, constants

from specdec_cli.pairs.hub import repository, requests
from specdec_cli.pairs.references import Reference, select

ALWAYS = 10**9


@pytest.fixture
def hub():
    with HostileHub() as hub:
        yield publish(hub)


@pytest.fixture(autouse=True)
def naps(inside) -> list[float]:
    return inside


@pytest.fixture
def impatient(monkeypatch) -> None:
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.setattr(constants, name, 0.5)
    monkeypatch.setattr(requests, "_TIMEOUTS_BEFORE_BODY", 0.4)


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def slow_head(answer: tricks.Answer, _: object) -> None:
    answer.head_pause = 0.05


def no_redirect(answer: tricks.Answer, rng: random.Random) -> None:
    """A status that promises an address, none, and a body that nobody waits for."""
    slow_body(answer, rng)
    answer.status = 300


def slow_body(answer: tricks.Answer, rng: random.Random) -> None:
    tricks.drip(answer, rng)
    answer.pause = 0.01


def crowd(answer: tricks.Answer, _: object) -> None:
    answer.body = [b'{"sha": "%s", "siblings": [%s{"rfilename": "b"}]}' % (b"0" * 40, b'{"rfilename": "a"},' * 50_000)]
    answer.set("Content-Length")


@pytest.mark.parametrize(
    ("step", "trick", "says"),
    [
        ("listing", tricks.endless, "too long or too slow"),
        ("listing", tricks.deep, "like the Hub"),
        ("listing", crowd, "like the Hub"),
        ("listing", tricks.packed, "compressed"),
        ("listing", tricks.refusal, "HTTP"),
        ("redirect", tricks.refusal, "HTTP"),
        ("redirect", tricks.endless, ""),
        ("content", tricks.endless, "is longer than"),
        ("content", tricks.endless_stated, "is longer than"),
        ("content", tricks.packed, "compressed"),
    ],
)
def test_an_answer_without_measure(hub, tmp_path, step, trick, says):
    hub.set_mode(Mode({step: [trick]}, ALWAYS, seed=5))
    if (step, trick) == ("redirect", tricks.endless):  # of its body no more is read than the connection is worth
        pulled_here()
    else:
        refused_here(tmp_path, says)
    assert size(tmp_path / "hf") <= sum(SIZES) + (1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "trick", "says"),
    [
        ("listing", slow_head, "no complete answer in time"),
        ("content", no_redirect, "HTTP 300"),
    ],
)
def test_an_answer_that_drips(hub, tmp_path, impatient, step, trick, says):
    hub.set_mode(Mode({step: [trick]}, ALWAYS, seed=0))
    refused_here(tmp_path, says)


def test_weights_that_drip(hub, tmp_path, naps, impatient):
    """After a header that came well."""
    hub.slow(content(hub, BIG_FILE), bytes_per_s=100)
    refused_here(tmp_path, "bytes per second", "Try again later")
    assert naps == []


@pytest.mark.parametrize(
    ("licence", "shown"),
    [("mit " * 2_500_000, "mit " * 25), (["mit", "other"], "mit, other"), ({"a": 1}, ""), (5, "")],
    ids=["long", "two", "none", "number"],
)
def test_a_licence_is_a_short_text(hub, licence, shown):
    hub.add(BIG, {BIG_FILE: TARGET}, licence=licence)
    plan = pulled_here(*PAIR, "--dry-run")
    assert plan["target"]["remote"]["licence"] == shown


def test_a_listing_that_never_ends_in_time(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "_LISTING_S", -1.0)
    refused_here(tmp_path, "too long or too slow")


@pytest.mark.parametrize("form", ["x{}-Q4_K_M-00001-of-00999.gguf", "x-Q1" * 50 + "{}"])
def test_many_files_are_looked_through_once(form):
    names = [form.format(i) for i in range(20_000)]
    with pytest.raises(Exception) as refusal:
        select(Reference("org/many", "Q4_K_M"), [*names, "a-Q8_0.gguf"])
    assert len(str(refusal.value)) + len(refusal.value.hint) < 10_000


@pytest.mark.parametrize(("name", "value"), [("HF_HUB_DOWNLOAD_TIMEOUT", "soon"), ("HF_ENDPOINT", "http://[")])
def test_settings_that_the_library_cannot_start_with(hub, tmp_path, name, value):
    done = pull(hub, tmp_path, *PAIR, env={name: value})
    assert done.returncode == 2 and name in complaint(done.stderr)[0]


@pytest.mark.parametrize("value", [-1, 10**30])
def test_a_timeout_that_is_none(tmp_path, monkeypatch, value):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", value)
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", str(value))
    refused_here(tmp_path, "HF_HUB_ETAG_TIMEOUT", "Fix or unset it", code=2)


@pytest.mark.parametrize(
    ("name", "value"), [("HTTP_PROXY", "nonsense"), ("ALL_PROXY", "socks5://x"), ("SSL_CERT_FILE", "/none")]
)
def test_a_network_that_is_set_up_wrongly(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "")
    close_session()
    refused_here(tmp_path)
    close_session()


def test_an_address_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://a b")
    refused_here(tmp_path, "HF_ENDPOINT")


def test_a_pull_whose_hub_recovers(hub):
    """A connection that one bad answer has spoiled is not used again."""
    hub.set_mode(Mode({"content": [tricks.short], "listing": [tricks.short]}, 1, 3))
    pulled_here()
    assert pull_here(*PAIR).exit_code == 0
