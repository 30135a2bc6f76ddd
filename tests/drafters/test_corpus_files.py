"""Which files a corpus is: what is text in a folder, what must be because it was named, and what is refused."""

import os

import pytest

from specdec_cli.decoding.errors import UsageError
from specdec_cli.drafters import corpus


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
        for source in corpus.find([str(n) for n in names])
        if (text := corpus.text_of(source)) is not None
    }


def test_of_a_folder_what_is_text(code):
    assert texts(code) == {"a.py": "a = 1\n", "b.py": "b = 1\n", "c.txt": "ä = 1\n"}


def test_a_file_that_is_named_may_be_hidden_or_large_or_have_a_byte_order_mark(code, tmp_path):
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1")
    named = texts(code / ".hidden", code / "large.txt", tmp_path / "bom.py")
    assert list(named) == [".hidden", "large.txt", "bom.py"] and named["bom.py"] == "x = 1"


@pytest.mark.parametrize(
    ("name", "says"),
    [("image.png", "is not text"), ("latin.txt", "byte 0xe9 at 3"), ("dangling", "no file"), ("pipe", "regular")],
)
def test_what_is_named_must_be_text(code, name, says):
    with pytest.raises(UsageError, match=says) as caught:
        texts(code / name)
    assert caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize("what", ["file", "folder", "link to a folder"])
def test_what_may_not_be_read(code, monkeypatch, what):
    (code.parent / "link").symlink_to(code)
    name = {"file": code / "a.py", "folder": code}.get(what, code.parent / "link")

    def refused(*_args, **_options):
        raise PermissionError(13, "Permission denied", str(code))

    monkeypatch.setattr("pathlib.Path.open" if what == "file" else "os.scandir", refused)
    with pytest.raises(UsageError, match="Permission denied"):
        corpus.find([str(name)])


def test_an_empty_corpus(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    for name in ("empty", "empty.txt"):
        with pytest.raises(UsageError, match="is empty") as caught:
            corpus.find([str(tmp_path / name)])
        assert name in str(caught.value)


def test_a_corpus_that_is_too_large(code, monkeypatch):
    monkeypatch.setattr(corpus, "_MOST_IN_ALL", 10)
    with pytest.raises(UsageError, match="5 files"):
        corpus.find([str(code)])
