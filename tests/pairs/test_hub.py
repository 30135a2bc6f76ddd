"""Files from a Hub whose connections break, stall and lie, or that knows no measure: what is asked for again, what is
kept, what is told, and what it may cost in bytes, time, files and waits.
"""

import hashlib
import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import hostile_hub as tricks
import pytest
from driver import DRAFT, TARGET, complaint
from hostile_hub import HostileHub, Mode
from hub_pairs import (
    BIG,
    BIG_FILE,
    PAIR,
    SIZES,
    SMALL,
    SMALL_FILE,
    begun,
    content,
    files,
    of_header,
    planned,
    publish,
    pull,
    pull_here,
    pulled_here,
    refused_here,
    weights,
)
from huggingface_hub import close_session, constants, get_hf_file_metadata

from specdec_cli.make_drafts.draft_copy import find_target
from specdec_cli.pairs import references
from specdec_cli.pairs.config_layers import resolve
from specdec_cli.pairs.hub import cache, repository, requests
from specdec_cli.pairs.hub.download import download
from specdec_cli.pairs.pair_list import pair_details
from specdec_cli.pairs.references import Reference, select

INF = 10**9
HEADER, WEIGHTS = 1, 2
CHUNK = 1 << 20


@pytest.fixture
def hub():
    with HostileHub() as hub:
        yield publish(hub)


@pytest.fixture(autouse=True)
def naps(inside):
    return inside


# --- what passes ---


@pytest.mark.parametrize("status", [404, 501])
def test_what_will_not_pass_is_not_waited_for(hub, naps, tmp_path, status):
    hub.fail("/api/models/", status, times=INF)
    refused_here(tmp_path, f"HTTP {status}", "HF_ENDPOINT")
    assert naps == [] and len(hub.requests) == 1


def test_the_hub_says_when_to_come_back(hub, naps, caplog):
    hub.fail("/api/models/", 429, headers={"Retry-After": "7"})
    hub.fail("/api/models/", 503, headers={"Retry-After": "300"})
    hub.fail("/api/models/", 503, headers={"Retry-After": "soon"})
    with caplog.at_level(logging.WARNING, "specdec_cli"):
        pulled_here()
    assert naps == [7, 300, 4]
    told = [f"specdec: the Hub asks to wait {seconds} s" for seconds in (7, 300)]
    assert [record.getMessage() for record in caplog.records] == told


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"Retry-After": "3600"}, "60 minutes (HTTP 429)"),
        ({"Retry-After": "9" * 5000}, "minutes (HTTP 429)"),
        ({"RateLimit": f'"api";r=0;t={INF**99}'}, "minutes (HTTP 429)"),
    ],
)
def test_a_wait_that_is_too_long_is_not_begun(hub, naps, tmp_path, headers, says):
    hub.fail("/api/models/", 429, headers=headers)
    refused_here(tmp_path, says, "Try again then")
    assert naps == [] and len(hub.requests) == 1


def test_the_hub_says_how_long_it_limits_requests(hub, naps, caplog):
    """In another header, which other answers have too."""
    for status, limit in ((429, '"resolvers";r=0;t=55'), (503, '"api";r=9;t=200'), (429, '"api";r=0;t=300')):
        hub.fail("/api/models/", status, headers={"RateLimit": limit})
    with caplog.at_level(logging.WARNING, "specdec_cli"):
        pulled_here()
    assert naps == [56, 2, 301]
    told = [f"specdec: the Hub asks to wait {seconds} s" for seconds in (56, 301)]
    assert [record.getMessage() for record in caplog.records] == told


@pytest.mark.parametrize(("headers", "code"), [({"Retry-After": "200"}, 0), ({}, 4)])
def test_the_waits_that_the_hub_asks_for_do_not_count_as_slowness(hub, monkeypatch, headers, code):
    """Others do. The clock is the test's."""
    clock = [0.0]
    monkeypatch.setattr("time.sleep", lambda seconds: clock.__setitem__(0, clock[0] + max(seconds, 70)))
    for module in (repository, requests):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    hub.fail(content(hub, BIG_FILE, HEADER, 2), 429, headers=headers, times=2)
    assert pull_here(*PAIR).exit_code == code and not hub.faults


@pytest.mark.parametrize(
    ("step", "part", "status"),
    [
        *(("/api/models/", 0, status) for status in (408, 503, 0)),
        *(("/org/", HEADER, 503), ("/org/", WEIGHTS, 0), ("/cdn/", HEADER, 0), ("/cdn/", WEIGHTS, 503)),
    ],
)
def test_what_fails_twice(hub, naps, step, part, status):
    def judge(line):
        asked = of_header(hub.log[-1]) == (part == HEADER) and line.endswith(BIG_FILE)
        return line.startswith(f"GET {step}") and (asked or not part)

    hub.fail(judge, status, times=2)
    pulled_here()
    assert len(naps) == 2 and not hub.faults
    # Where a file belongs was settled by the listing: nothing is asked after the weights.
    assert weights(hub) == sum(SIZES) and not [request for request in hub.requests if request.method == "HEAD"]


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_a_connection_that_breaks_in_the_header(hub, naps, reset):
    hub.cut(content(hub, BIG_FILE, HEADER, 2), after=70_000, reset=reset)
    hub.cut(content(hub, BIG_FILE, HEADER + 1, 1), after=0, reset=reset)
    pulled_here()
    assert not hub.faults and naps[:2] == [1, 2]
    ranges = [request.range for request in hub.requests if request.file and request.file.endswith(BIG_FILE)]
    assert len(ranges) == 4 and ranges[-1] is None
    if not reset:  # what had come was not asked for again; a reset may take it along
        assert int(ranges[1].split("=")[1].split("-")[0]) >= 64 << 10


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_a_connection_that_breaks_again_and_again(hub, naps, tmp_path, reset):
    """As long as something comes each time, it is gone on with."""
    hub.cut(content(hub, BIG_FILE, WEIGHTS, 6), after=2_000_000, times=6, reset=reset)
    found = pulled_here()
    assert not hub.faults and len(naps) >= 4
    starts = [request.range for request in hub.requests if request.file and request.file.endswith(BIG_FILE)][2:]
    places = [int(text.removeprefix("bytes=").removesuffix("-")) for text in starts]
    assert places == sorted(set(places)) and all(place % CHUNK == 0 for place in places)
    assert Path(found["paths"]["target"]).read_bytes() == TARGET.read_bytes()


@pytest.mark.parametrize(("begun", "refusals"), [(True, 7), (True, 8), (False, 1)])
def test_a_network_that_is_away_for_a_minute(hub, naps, tmp_path, monkeypatch, caplog, begun, refusals):
    """What had begun goes on; a machine that was offline before fails at once."""

    def get(*args):
        if refused and not hub.faults:
            raise requests.http().ConnectError(refused.pop())
        return requests.get(*args)

    refused = ["Connection refused"] * refusals
    if begun:
        hub.cut(content(hub, BIG_FILE, WEIGHTS), after=2_000_000)
    monkeypatch.setattr("specdec_cli.pairs.hub.download.get", get)
    with caplog.at_level(logging.WARNING, "specdec_cli"):
        if refusals == 7:
            assert Path(pulled_here()["paths"]["target"]).read_bytes() == TARGET.read_bytes()
        else:
            refused_here(tmp_path, "cannot reach", "continues where it stopped")
    assert naps == ([1, 1, 2, 4, 8, 16, 32] if begun else []) and not refused
    told = [f"specdec: the connection failed; trying again in {wait} s" for wait in (8, 16, 32)]
    assert [record.getMessage() for record in caplog.records] == (told if begun else [])


def test_a_hub_that_fails_in_a_download_is_not_taken_for_a_connection(hub, naps, caplog):
    hub.cut(content(hub, BIG_FILE, WEIGHTS), after=2_000_000)
    hub.fail(content(hub, BIG_FILE, WEIGHTS + 1, 7), 503, times=7)
    with caplog.at_level(logging.WARNING, "specdec_cli"):
        pulled_here()
    assert not hub.faults
    told = ["specdec: the Hub returned HTTP 503; trying again in 8 s"]
    assert [record.getMessage() for record in caplog.records] == told


def test_a_header_longer_than_a_window_is_asked_for_in_growing_ones(hub, monkeypatch):
    monkeypatch.setattr("specdec_cli.pairs.hub.repository._WINDOWS", (4096, 1 << 14, 1 << 16))
    pulled_here()
    ends = [int(request.range.split("-")[1]) + 1 for request in hub.requests if request.file and of_header(request)]
    assert ends[:4] == [4096, 4096 + (1 << 14), 4096 + (1 << 14) + (1 << 16), 4096 + (1 << 14) + 2 * (1 << 16)]


@pytest.mark.parametrize(("part", "by"), [(HEADER, 200_000), (WEIGHTS, 5_000_000)])
def test_an_answer_that_ends_early_twice(hub, naps, part, by):
    hub.truncate(content(hub, BIG_FILE, part, 2), by=by, times=2)
    found = pulled_here()
    assert not hub.faults and naps == [1, 2][: len(naps)] != []
    assert Path(found["paths"]["target"]).read_bytes() == TARGET.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "after"), [("/api/models/", 100), (HEADER, 50_000), (WEIGHTS, None), (WEIGHTS, 50_000)]
)
def test_a_hub_that_stalls(hub, monkeypatch, naps, part, after):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    hub.stall(part if isinstance(part, str) else content(hub, BIG_FILE, part), seconds=60, after=after)
    pulled_here()
    assert naps and not hub.faults


# --- what does not pass ---


@pytest.mark.parametrize(
    ("part", "status", "says"),
    [
        ("GET /api/models/", 429, "limits requests"),
        ("GET /api/models/", 0, "cannot reach"),
        (HEADER, 503, "HTTP 503"),
        (WEIGHTS, 500, "HTTP 500"),
    ],
)
def test_failures_that_last(hub, naps, tmp_path, part, status, says):
    hub.fail(part if isinstance(part, str) else content(hub, BIG_FILE, part, 1000), status, times=INF)
    refused_here(tmp_path, says)
    assert 3 <= len(naps) <= 30 and sum(naps) < 180
    assert begun(tmp_path) == 0 and weights(hub) == 0


# --- what came altered ---


def test_weights_that_were_altered(hub, naps, tmp_path):
    hub.alter(content(hub, BIG_FILE), at=-1)
    refused_here(tmp_path, BIG_FILE, "checksum", "Try again")
    assert begun(tmp_path) == 0 and naps == []
    hub.reset()
    found = pulled_here()
    assert weights(hub) == sum(SIZES)
    assert Path(found["paths"]["target"]).read_bytes() == TARGET.read_bytes()


@pytest.mark.parametrize(
    ("place", "there", "kept"),
    [
        (cache.partial_of, bytes(5_000_000), 5_000_000),  # which turns out to be damaged once the rest is there
        (cache.partial_of, TARGET.read_bytes() + b"more", SIZES[0]),
        (cache.blob_of, b"", SIZES[0]),
        (cache.blob_of, TARGET.read_bytes() + b"m", SIZES[0]),
    ],
    ids=["altered", "longer", "empty content", "longer content"],
)
def test_content_that_is_not_the_files_is_fetched_again(hub, place, there, kept):
    model, file = planned()
    place(model, file).parent.mkdir(parents=True)
    place(model, file).write_bytes(there)
    pulled_here()
    assert weights(hub, BIG_FILE) == SIZES[0] - kept + SIZES[0]
    assert cache.path_of(model, file).read_bytes() == TARGET.read_bytes()


def test_all_of_a_file_that_was_altered_is_fetched_twice_at_most(hub, tmp_path):
    partial = cache.partial_of(*planned())
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(5_000_000))
    hub.alter(content(hub, BIG_FILE, 3))
    refused_here(tmp_path, BIG_FILE, "checksum", "Try again")
    assert begun(tmp_path) == 0 and weights(hub, BIG_FILE) == SIZES[0] - 5_000_000 + SIZES[0]


def test_a_file_that_git_holds_itself(hub):
    """Small files have git's checksum, not SHA-256."""
    repo = hub.repos["org/draft-GGUF"]
    file = repo.commits[repo.main][SMALL_FILE]
    data = DRAFT.read_bytes()
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    repo.commits[repo.main][SMALL_FILE] = replace(file, oid=oid, pointer=b"")
    found = pulled_here()
    assert Path(found["paths"]["draft"]).resolve().name == oid


def test_a_model_that_is_published_anew(hub, tmp_path):
    """A recorded pair stays what it is; its files are one commit's."""
    first = pulled_here()
    hub.add(BIG, {BIG_FILE: TARGET.read_bytes() + bytes(8)})
    hub.reset()
    assert pulled_here()["already"] and hub.requests == []
    second = pulled_here(*PAIR, "--as", "new")
    assert second["downloaded"] == SIZES[0] + 8
    assert second["paths"]["target"] != first["paths"]["target"] and files(tmp_path) == [SMALL_FILE, BIG_FILE, BIG_FILE]
    reference = references.parse(PAIR[1])
    assert reference is not None and str(cache.find(reference)) == second["paths"]["target"]
    for found in (first, second):
        assert str(find_target(found["name"])[0]) == found["paths"]["target"]
        for given in ({}, {"target": str(TARGET)}, {"draft": str(DRAFT)}):
            settings = resolve(found["name"], given)
            assert {"target": settings.target, "draft": settings.draft} == {**found["paths"], **given}
        assert resolve(found["name"], {"drafter": "self"}).target == found["paths"]["target"]
        assert pair_details(found["name"]).summary.paths == tuple(found["paths"].values())


def test_heads_that_were_pulled_by_quantisation_are_found(hub):
    """As in a repository that has only heads. Completion names the file, which can't mean their model."""
    path = Path(pulled_here()["paths"]["draft"])
    heads = path.rename(path.with_name(f"mtp-{path.name}"))
    for reference in (Reference(SMALL, "Q8_0"), Reference(SMALL), Reference(SMALL, file=heads.name)):
        assert cache.find(reference) == heads
    assert set(cache.references()) == {f"{BIG}:Q4_K_M", f"{SMALL}/{heads.name}"}


# --- files that the Hub does not serve whole over HTTP ---


@pytest.fixture
def large(monkeypatch):
    """As if every file were above the Hub's limit: huggingface_hub downloads it, by Xet where there is one."""
    monkeypatch.setattr("specdec_cli.pairs.hub.download._MAX_HTTP_BYTES", 0)


def test_what_the_library_brings_is_checked_too(hub, naps, large, tmp_path):
    hub.alter(content(hub, BIG_FILE, WEIGHTS), at=-1)
    refused_here(tmp_path, "arrived damaged")
    pulled_here()


class Xet:
    """hf_xet, which brings files from this folder: what is called of it, and its report at the end."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def new_file_download_group(self, progress_callback, **_):
        self.report = progress_callback
        return nullcontext(self)

    def start_download_file(self, info, path):
        if self.error:
            raise self.error
        Path(path).write_bytes(next(source for source in (TARGET, DRAFT) if source.stat().st_size == info).read_bytes())
        for done in (info // 2, info):
            rates = {f"total_{what}_completion_rate": 1.0 for what in ("bytes", "transfer_bytes")}
            counts = {"total_bytes_completed": done, "total_transfer_bytes_completed": done // 3, "total_bytes": info}
            self.report(SimpleNamespace(**counts, **rates))


@pytest.fixture
def xet(large, monkeypatch):
    from huggingface_hub import file_download
    from huggingface_hub.utils import _xet

    def metadata(**options):
        url, etag, commit, length, _, error = asked(**options)
        return url, etag, commit, length, _xet.XetFileData(file_hash=etag, refresh_route="http://none"), error

    asked, session = file_download._get_metadata_or_catch_error, Xet()
    connection = SimpleNamespace(endpoint="", access_token="", expiration_unix_epoch=0)
    monkeypatch.setattr(file_download, "_get_metadata_or_catch_error", metadata)
    monkeypatch.setattr(_xet, "refresh_xet_connection_info", lambda **_: connection)
    monkeypatch.setattr(_xet, "get_xet_session", lambda: session)
    monkeypatch.setattr("hf_xet.XetFileInfo", lambda _, length: length)
    return session


def test_xet_brings_a_file(xet):
    told = []
    model, file = planned()
    download(model, file, lambda _, state, done: told.append((state, done)))
    assert cache.path_of(model, file).read_bytes() == TARGET.read_bytes()
    # Bytes on the disk, and none of those on the network.
    fetched = [("fetch", SIZES[0] // 2), ("fetch", SIZES[0])]
    assert told == [("begin", 0), *fetched, ("check", SIZES[0]), ("done", SIZES[0])]


def test_a_failure_of_xet(xet, tmp_path):
    xet.error = RuntimeError("Task error: CAS Client Error:\n503 Service Unavailable")
    refused_here(tmp_path, f"{BIG_FILE} could not be downloaded: Task error: CAS Client Error: 503", "Check")


def test_a_hub_that_tells_two_stories_about_a_large_file(hub, naps, large, tmp_path, monkeypatch):
    def lying(*args, **options):
        return replace(get_hf_file_metadata(*args, **options), etag="../../../elsewhere")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lying)
    before = set(tmp_path.rglob("*"))
    refused_here(tmp_path, "two different files")
    assert weights(hub) == 0 and not [
        path for path in set(tmp_path.rglob("*")) - before if path.is_file() and path.stat().st_size > 1000
    ]


# --- without measure ---


@pytest.fixture
def impatient(monkeypatch):
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.setattr(constants, name, 0.5)
    monkeypatch.setattr(requests, "_TIMEOUTS_BEFORE_BODY", 0.4)


def size(folder):
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def slow_head(answer, _):
    answer.head_pause = 0.05


def no_redirect(answer, rng):
    """A status that promises an address, none, and a body that nobody waits for."""
    slow_body(answer, rng)
    answer.status = 300


def slow_body(answer, rng):
    tricks.drip(answer, rng)
    answer.pause = 0.01


def crowd(answer, _):
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
    hub.set_mode(Mode({step: [trick]}, INF, seed=5))
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
    hub.set_mode(Mode({step: [trick]}, INF, seed=0))
    refused_here(tmp_path, says)


def test_weights_that_drip(hub, tmp_path, naps, monkeypatch):
    """After a header that came well, however late."""
    monkeypatch.setattr(requests, "_timeout_of", lambda _: 0.5)
    monkeypatch.setattr(requests, "_TIMEOUTS_BEFORE_BODY", 100)
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
def test_a_timeout_or_an_address_that_is_none(tmp_path, monkeypatch, value):
    with monkeypatch.context() as endless:
        endless.setattr(constants, "HF_HUB_ETAG_TIMEOUT", value)
        endless.setenv("HF_HUB_ETAG_TIMEOUT", str(value))
        refused_here(tmp_path, "HF_HUB_ETAG_TIMEOUT", "Fix or unset it", code=2)
    monkeypatch.setattr(constants, "ENDPOINT", "http://a b")
    refused_here(tmp_path, "HF_ENDPOINT")


@pytest.mark.parametrize(
    ("name", "value"), [("HTTP_PROXY", "nonsense"), ("ALL_PROXY", "socks5://x"), ("SSL_CERT_FILE", "/none")]
)
def test_a_network_that_is_set_up_wrongly(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "")
    close_session()
    refused_here(tmp_path)
    close_session()


def test_a_pull_whose_hub_recovers(hub):
    """A connection that one bad answer has spoiled is not used again."""
    hub.set_mode(Mode({"content": [tricks.short], "listing": [tricks.short]}, 1, 3))
    pulled_here()
    assert pulled_here()["already"]
