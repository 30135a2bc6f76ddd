"""What is kept comes back as the dataclass that it was; a file that is damaged is told, and set aside or left."""

import json
from dataclasses import dataclass, field, replace
from typing import Annotated

import pytest
from msgspec import Meta

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.json_store import JsonStore, record_name


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    count: Annotated[int, Meta(ge=1)]
    costs: Costs | None = None
    sizes: dict[int, float] = field(default_factory=dict)


COSTS = Costs(Curve({4: 0.5, 1: 0.25}), Curve({1: 0.125}), 0.5)
ENTRY = Entry("a", 3, COSTS, {16: 0.5})


@pytest.fixture
def store(tmp_path):
    return JsonStore(lambda: tmp_path / "kept", Entry, "Make {name} again.")


def test_what_is_kept_comes_back(store):
    assert store.load("a") is None and store.names() == []
    path = store.save("a", ENTRY)
    store.save("b", replace(ENTRY, name="b", costs=None))
    assert store.load("a") == ENTRY and store.names() == ["a", "b"]
    assert json.loads(path.read_text()) == {
        "format": 1,
        "count": 3,
        "costs": {
            "verify": {"1": 0.25, "4": 0.5},
            "draft": {"1": 0.125},
            "other": 0.5,
            "singly": False,
            "repeated": None,
        },
        "sizes": {"16": 0.5},
    }
    replayed = replace(COSTS, repeated=Curve({1: 0.25, 3: 0.375}))
    store.save("a", replace(ENTRY, count=4, costs=replayed))
    assert store.load("a") == Entry("a", 4, replayed, {16: 0.5}) and len(list(path.parent.iterdir())) == 2


def test_a_killed_writer_leaves_the_old_file(store, monkeypatch):
    path = store.save("a", ENTRY)

    def killed(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save("a", replace(ENTRY, count=9))
    assert store.load("a") == ENTRY and list(path.parent.iterdir()) == [path]


DAMAGED = {
    "cut": b'{"format": 1',
    "list": b"[]",
    "bytes": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "no format": b'{"count": 1}',
    "nothing but a format": b'{"format": 1}',
    "out of range": b'{"format": 1, "count": 0}',
    **{
        f"the curve {curve}": b'{"format": 1, "count": 1, "costs": {"draft": {"1": 1}, "verify": %s}}' % curve
        for curve in (b'{"2": 1}', b'{"1": 0}', b'{"1": 1e999}', b"[]")
    },
}  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_told_and_set_aside_where_it_can_be_made_again(store, content):
    path = store.path("a")
    for kept in (replace(store, remade=False), store):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        with pytest.raises(SpecdecError, match="cannot read") as caught:
            kept.load("a")
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
        assert caught.value.hint == "Make a again."
        assert path.exists() != kept.remade
    assert path.with_name("a.json.damaged").read_bytes() == content
    assert store.load("a") is None and store.names() == []


def test_what_cannot_be_read_or_written_is_told_and_stays(store):
    store.path("a").mkdir(parents=True)
    for use in (lambda: store.load("a"), lambda: store.save("a", ENTRY)):
        with pytest.raises(SpecdecError, match=r"cannot (read|write)") as caught:
            use()
        assert caught.value.hint and store.path("a").is_dir()


def test_names_of_files_fit_and_differ():
    long = record_name(("x" * 140, "y" * 140), "one")
    assert len(long.encode()) < 240 and long.startswith("x" * 100 + "+y")
    assert record_name(("m",), "one") != record_name(("m",), "two")
    assert record_name(("\u4e2d" * 60 + "\udcff",), "\udcff").isprintable(), "cut within a character"
