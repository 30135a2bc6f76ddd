"""Hints for misspelt words, YAML that is none, and files that are written whole."""

import errno
import os
from pathlib import Path

import pytest
import yaml
from devices import device
from full_disk import full_disk

from specdec_cli import user_files, yaml_reader
from specdec_cli.decoding.errors import SpecdecError, UsageError

MALFORMED = {
    "syntax": "target: [1\n",
    "list": "- target\n",
    "two documents": "target: a\n---\ntarget: b\n",
    "not UTF-8": b"target: \xff\n",
    "control characters": "target: \x00\n",
    "an object": "target: !!python/object/apply:os.system ['true']\n",
    "half a surrogate pair": 'target: "\\ud800"\n',
    "aliases that multiply": "a0: &a0 [x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(40)),
    "megabytes": "target: x\n" + "# \n" * 99_999,
    "deep nesting": "target: " + "[" * 5000 + "\n",
    "unhashable key": "target: x\n? [a]\n: b\n",
}


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def parser(request, monkeypatch):
    """PyYAML's parser in C, and the one for where that was not built."""
    monkeypatch.setattr(yaml_reader, "_PARSER", getattr(yaml, request.param))


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_mapping_is_a_usage_error(tmp_path, content):
    (tmp_path / "bad.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        user_files.read_mapping(tmp_path / "bad.yaml")
    assert "bad.yaml" in str(caught.value) and caught.value.hint and "\n" not in str(caught.value)


def test_what_killed_runs_left_is_removed_and_nothing_newer(tmp_path):
    old, new, written = (tmp_path / f".specdec-{name}" for name in ("old", "new", "written"))
    for folder in (old, written):
        folder.mkdir()
        (folder / "copy.gguf").touch()
    new.touch()
    for path in (old / "copy.gguf", old, written):
        os.utime(path, (1, 1))
    user_files.remove_abandoned(tmp_path, ".specdec-*")
    assert {*tmp_path.iterdir()} == {new, written}


def test_without_a_home_folder_two_lines_say_so(monkeypatch):
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}[0])
    for folder in (user_files.config_dir, user_files.cache_dir, user_files.data_dir):
        with pytest.raises(UsageError, match="no home folder"):
            folder()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UsageError, match="it is not a file"):
        user_files.read_mapping(tmp_path / "pipe.yaml")


@pytest.mark.usefixtures("parser")
def test_values_are_what_they_look_like(monkeypatch):
    text = "[1, -2, 1.5, .5, 1e3, true, No, ~, null, '1', x, 4:3:4, 1:2.5, 2026-01-02, 0x10, 1_000, .nan, 1e999, <<]"
    values = [1, -2, 1.5, 0.5, 1000.0, True, False, None, None, "1", "x", "4:3:4", "1:2.5", "2026-01-02", "0x10"]
    assert user_files.parse_yaml(text) == [*values, "1_000", ".nan", "1e999", "<<"]
    assert user_files.parse_yaml("7" * 4300) == user_files.parse_yaml(f"'{'7' * 4300}'")
    assert user_files.parse_yaml("a: {b: [], c: }\nd: |\n  x\n  y\na: 2") == {"a": 2, "d": "x\ny\n"}
    assert yaml_reader._MAX_EVENTS == 200_000
    monkeypatch.setattr(yaml_reader, "_MAX_EVENTS", 2000)
    with pytest.raises(ValueError, match="too many values"):
        user_files.parse_yaml("[" + "1, " * 2500 + "]")


@pytest.mark.parametrize("text", ["", "NaN", "1e999", "7" * 30, "[" * 99_999, b"\xff", "{1: 2}"])
def test_what_is_no_json(text):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        user_files.parse_json(text)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path, link = tmp_path / "fd" / "a.json", tmp_path / "link.json"
    user_files.write_whole(path, "old")
    path.chmod(0o640)
    link.symlink_to(path)
    user_files.write_whole(link, os.fsdecode(b"caf\xe9.gguf"))
    assert path.read_bytes() == b"caf\xe9.gguf"
    user_files.write_whole(link, b"newer", memoryview(b" still"))
    assert path.read_text() == "newer still" and path.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
    for way in (lambda: user_files.write_whole(path, b"new", None), lambda: user_files.write_whole(path, "\ud800")):
        with pytest.raises((TypeError, ValueError)):
            way()
    assert path.read_text() == "newer still" and list(path.parent.iterdir()) == [path]


def test_while_a_file_is_replaced_nobody_else_can_read_it(tmp_path):
    path = tmp_path / "secret.env"
    path.touch(0o600)
    with user_files.replacing(path) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def test_a_replaced_file_keeps_its_owner_and_group(tmp_path, monkeypatch):
    """Only root may give a file away; for others, the request is what can be seen."""
    path, give, asked = tmp_path / "a.json", os.chown, []
    path.touch()
    if os.getuid() == 0:
        give(path, 12345, 54321)
    path.chmod(0o4750)
    before = path.stat()
    monkeypatch.setattr(os, "chown", lambda file, *ids: (asked.append(ids), give(file, *ids)))
    user_files.write_whole(path, "new")
    about = path.stat()
    assert (about.st_uid, about.st_gid, about.st_mode & 0o7777) == (before.st_uid, before.st_gid, 0o4750)
    assert asked == [(-1, before.st_gid), (before.st_uid, -1)]


def test_a_file_that_is_mounted_by_itself_is_overwritten(tmp_path, monkeypatch):
    def busy(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    path = tmp_path / "app.py"
    path.write_text("old and longer")
    monkeypatch.setattr(Path, "replace", busy)
    user_files.write_whole(path, "new")
    assert path.read_text() == "new" and [*tmp_path.iterdir()] == [path]


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path):
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="too large"):
        user_files.read_bytes(tmp_path / "endless", 1000)


def test_what_is_no_file_is_written_to_as_it_is(tmp_path):
    null, full = (device(tmp_path, name) for name in ("null", "full"))
    user_files.write_whole(null, "x")
    with pytest.raises(SpecdecError, match="No space left"):
        user_files.write_whole(full, "x")
    assert null.is_char_device() and full.is_char_device()


def test_a_place_is_tried_out_before_the_work(tmp_path):
    (tmp_path / "old").write_text("old")
    for place in (tmp_path / "old", tmp_path / "new", device(tmp_path, "full")):
        user_files.try_out(place)
    for place in (tmp_path, tmp_path / "nowhere" / "a", tmp_path / "old" / "a"):
        with pytest.raises(OSError, match="directory"):
            user_files.try_out(place)
    with full_disk(4095), pytest.raises(OSError, match="too large"):
        user_files.try_out(tmp_path / "old")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [("old", "old")]
