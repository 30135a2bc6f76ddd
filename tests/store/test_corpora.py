"""Which files a corpus is, and its index on disk: kept, found again, noticed when damaged or out of date."""

import os
import time

import numpy as np
import pytest

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.models.gguf_header import Header, StringArray
from specdec_cli.store import corpora

TOKENS, ORDER = np.array([-1, 5, 6, 7, -1], np.int32), np.array([2, 3], np.int32)


def header(**metadata):
    return Header("m.gguf", 3, {"tokenizer.ggml.model": "gpt2", **metadata}, (), 0)


@pytest.fixture
def code(tmp_path):
    """A folder with text and with much that is none."""
    folder = tmp_path / "code"
    for name, data in {
        "b.py": b"b = 1\n",
        "a.py": b"a = 1\n",
        "sub/c.txt": "ä = 1\n".encode(),
        ".hidden": b"no",
        ".git/config": b"no",
        "image.png": b"\x89PNG\0\0",
        "latin.txt": b"caf\xe9",
        "large.txt": b"x" * ((4 << 20) + 1),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    return folder


def texts(*names):
    return {
        source.path.name: text
        for source in corpora.find([str(n) for n in names])
        if (text := corpora.read(source)) is not None
    }


def test_of_a_folder_what_is_text(code):
    assert texts(code) == {"a.py": "a = 1\n", "b.py": "b = 1\n", "c.txt": "ä = 1\n"}


def test_files_count_once_however_often_they_are_named(code):
    found = corpora.find([str(code / "b.py"), str(code), str(code / "sub" / ".." / "b.py")])
    assert [source.path.name for source in found].count("b.py") == 1


def test_a_file_that_is_named_may_be_hidden_or_large(code):
    assert list(texts(code / ".hidden", code / "large.txt")) == [".hidden", "large.txt"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1")
    assert texts(tmp_path / "bom.py") == {"bom.py": "x = 1"}


@pytest.mark.parametrize(
    ("name", "says"),
    [("image.png", "is not text"), ("latin.txt", "byte 0xe9 at 3"), ("missing", "there is no file"),
     ("pipe", "is a device"), ("dangling", "there is no file")],
)  # fmt: skip
def test_what_is_named_must_be_text(code, name, says):
    with pytest.raises(UsageError, match=says) as caught:
        texts(code / name)
    assert caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_read(code, monkeypatch, what):
    def refused(*_args, **_options):
        raise PermissionError(13, "Permission denied", str(code))

    monkeypatch.setattr("pathlib.Path.open" if what == "file" else "os.scandir", refused)
    with pytest.raises(UsageError, match="Permission denied"):
        corpora.find([str(code / "a.py" if what == "file" else code)])


def test_a_file_that_goes_away_before_it_is_read(code):
    (folder_file,) = [source for source in corpora.find([str(code)]) if source.path.name == "a.py"]
    (named_file,) = corpora.find([str(code / "a.py")])
    (code / "a.py").unlink()
    assert corpora.read(folder_file) is None
    with pytest.raises(UsageError, match="there is no file"):
        corpora.read(named_file)


def test_an_empty_corpus(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    for name in ("empty", "empty.txt"):
        with pytest.raises(UsageError, match="nothing in the corpus") as caught:
            corpora.find([str(tmp_path / name)])
        assert name in str(caught.value)


def test_a_corpus_that_is_too_large(code, monkeypatch):
    monkeypatch.setattr(corpora, "_MOST_IN_ALL", 10)
    with pytest.raises(UsageError, match="5 files"):
        corpora.find([str(code)])


def path_of(*names, model=None):
    names = [str(name) for name in names]
    return corpora.path_of(model or header(), names, corpora.find(names))


def test_an_index_belongs_to_its_files_and_its_tokenizer(code):
    path = path_of(code)
    assert path == path_of(code) and path.parent == corpora.folder()
    chat = header(**{"tokenizer.chat_template": "x", "general.name": "y"})
    assert path_of(code, model=chat) == path, "neither has a say in what the tokens are"
    others = [
        header(**{"tokenizer.ggml.tokens": StringArray(b"\1\0\0\0\0\0\0\0a", 1)}),
        header(**{"tokenizer.ggml.scores": np.array([1.0])}),
        header(**{"tokenizer.ggml.add_space_prefix": False}),
    ]
    assert len({path, path_of(code / "a.py"), *(path_of(code, model=other) for other in others)}) == 5


@pytest.mark.parametrize("change", ["touch", "grow", "add", "remove"])
def test_a_change_asks_for_another_index_in_place_of_the_old(code, change):
    old = path_of(code)
    corpora.save(old, (TOKENS.data, ORDER.data))
    if change == "touch":
        os.utime(code / "a.py", (1, 1))
    elif change == "grow":
        before = (code / "a.py").stat()
        (code / "a.py").write_text("a = 10\n")
        os.utime(code / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "add":
        (code / "new.py").write_text("n = 1\n")
    else:
        (code / "a.py").unlink()
    new = path_of(code)
    assert new != old and corpora.load(new) is None
    corpora.save(new, (TOKENS.data, ORDER.data))
    assert [path.name for path in corpora.folder().iterdir()] == [new.name]


def test_an_index_is_mapped_as_it_was_kept(code):
    path = path_of(code)
    assert corpora.load(path) is None and corpora.kept_bytes() == 0
    corpora.save(path, (TOKENS.data, ORDER.data))
    tokens, order = corpora.load(path)
    assert (tokens.tolist(), order.tolist()) == (TOKENS.tolist(), ORDER.tolist())
    assert tokens.readonly and corpora.kept_bytes() == path.stat().st_size == 64 + 4 * 7


PLACES = [*range(0, 36, 3), *range(64, 64 + 4 * 7, 3)]  # between them is nothing


@pytest.mark.parametrize("damage", ["empty", "short", "cut", "long", "text", *PLACES])
def test_a_damaged_index_is_none(code, damage):
    path = path_of(code)
    corpora.save(path, (TOKENS.data, ORDER.data))
    data = bytearray(path.read_bytes())
    if isinstance(damage, int):
        data[damage] ^= 0x10
    else:
        data = {"empty": b"", "short": data[:30], "cut": data[:-4], "long": data + b"\0" * 4, "text": b"x" * 500}[
            damage
        ]
    path.write_bytes(data)
    assert corpora.load(path) is None
    corpora.save(path, (TOKENS.data, ORDER.data))
    assert corpora.load(path) is not None


def test_a_killed_writer_leaves_no_half(code, monkeypatch):
    path = path_of(code)

    def killed(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        corpora.save(path, (TOKENS.data, ORDER.data))
    assert list(corpora.folder().iterdir()) == []


def test_what_was_not_used_for_long_goes_first(code, monkeypatch):
    paths = [path_of(code / name) for name in ("a.py", "b.py", "sub")]
    for age, path in enumerate(paths[:2]):
        corpora.save(path, (TOKENS.data, ORDER.data))
        os.utime(path, (1000 + age, 1000 + age))
    corpora.load(paths[0])  # which uses it
    monkeypatch.setattr(corpora, "_MOST_KEPT", 2 * paths[0].stat().st_size)
    corpora.save(paths[2], (TOKENS.data, ORDER.data))
    assert set(corpora.folder().iterdir()) == {paths[0], paths[2]}


def test_what_a_killed_run_has_left_goes_after_a_while(code):
    corpora.folder().mkdir(parents=True)
    for name, age in (("old.tmp", 7200), ("young.tmp", 0)):
        (corpora.folder() / name).touch()
        os.utime(corpora.folder() / name, (time.time() - age,) * 2)
    corpora.save(path_of(code), (TOKENS.data, ORDER.data))
    assert [path.name for path in corpora.folder().glob("*.tmp")] == ["young.tmp"]


def test_a_cache_that_cannot_be_written(code):
    path = path_of(code)
    corpora.folder().parent.mkdir(parents=True)
    corpora.folder().write_text("a file where the folder should be")
    assert corpora.load(path) is None
    with pytest.raises(SpecdecError, match="cannot write") as caught:
        corpora.save(path, (TOKENS.data, ORDER.data))
    assert caught.value.hint
