"""An index on disk: kept, read again, noticed when damaged or out of date."""

import os

import numpy as np
import pytest
from engines import open_session

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.drafters import corpus
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.llama.interrupt import Interrupt

TOKENS, ORDER = np.array([-1, 5, 6, 7, -1], np.int32), np.array([2, 3], np.int32)


def header(**metadata):
    return Header("m.gguf", 3, {"tokenizer.ggml.model": "gpt2", **metadata}, (), 0)


@pytest.fixture
def code(tmp_path):
    """A folder with some text."""
    (tmp_path / "code" / "sub").mkdir(parents=True)
    for name in ("a.py", "b.py", "sub/c.txt"):
        (tmp_path / "code" / name).write_text("x = 1\n")
    return tmp_path / "code"


def path_of(*names, model=None):
    names = [str(name) for name in names]
    return corpus.path_of(model or header(), names, corpus.find(names))


def test_an_index_belongs_to_its_files_and_its_tokenizer(code):
    path = path_of(code)
    assert path == path_of(code) and path.parent == corpus.folder()
    chat = header(**{"tokenizer.chat_template": "x", "general.name": "y"})
    assert path_of(code, model=chat) == path, "neither has a say in what the tokens are"
    others = [
        header(**{"tokenizer.ggml.tokens": StringArray(b"\1\0\0\0\0\0\0\0a", 1)}),
        header(**{"tokenizer.ggml.scores": np.array([1.0])}),
        header(**{"tokenizer.ggml.add_space_prefix": False}),
    ]
    assert len({path, path_of(code / "a.py"), *(path_of(code, model=other) for other in others)}) == 5


@pytest.mark.parametrize("change", ["touch", "grow", "add"])
def test_a_change_asks_for_another_index_in_place_of_the_old(code, change):
    old = path_of(code)
    corpus.save_index(old, (TOKENS.data, ORDER.data))
    if change == "touch":
        os.utime(code / "a.py", (1, 1))
    elif change == "grow":
        before = (code / "a.py").stat()
        (code / "a.py").write_text("a = 10\n")
        os.utime(code / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        (code / "new.py").write_text("n = 1\n")
    new = path_of(code)
    assert new != old and corpus.load_index(new) is None
    corpus.save_index(new, (TOKENS.data, ORDER.data))
    assert [path.name for path in corpus.folder().iterdir()] == [new.name]


def test_an_index_is_mapped_as_it_was_kept(code):
    path = path_of(code)
    assert corpus.load_index(path) is None and corpus.kept_bytes() == 0
    corpus.save_index(path, (TOKENS.data, ORDER.data))
    tokens, order = corpus.load_index(path)
    assert (tokens.tolist(), order.tolist()) == (TOKENS.tolist(), ORDER.tolist())
    assert tokens.readonly and corpus.kept_bytes() == path.stat().st_size == 64 + 4 * 7


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:30],
        lambda data: data[:-4],
        lambda data: b"x" * 16 + data[16:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
    ids=["empty", "a part of its head", "cut", "of another format", "changed"],
)
def test_a_damaged_index_is_none(code, damage):
    path = path_of(code)
    corpus.save_index(path, (TOKENS.data, ORDER.data))
    path.write_bytes(damage(path.read_bytes()))
    assert corpus.load_index(path) is None
    corpus.save_index(path, (TOKENS.data, ORDER.data))
    assert corpus.load_index(path) is not None


def test_what_was_not_used_for_long_goes_first(code, monkeypatch):
    paths = [path_of(code / name) for name in ("a.py", "b.py", "sub")]
    for age, path in enumerate(paths[:2]):
        corpus.save_index(path, (TOKENS.data, ORDER.data))
        os.utime(path, (1000 + age, 1000 + age))
    corpus.load_index(paths[0])  # which uses it
    monkeypatch.setattr(corpus, "_MOST_KEPT", 2 * paths[0].stat().st_size)
    corpus.save_index(paths[2], (TOKENS.data, ORDER.data))
    assert set(corpus.folder().iterdir()) == {paths[0], paths[2]}


def test_an_index_in_a_cache_that_cannot_be_written_is_used(code, monkeypatch):
    path = path_of(code)
    corpus.save_index(path, (TOKENS.data, ORDER.data))
    monkeypatch.setattr(os, "utime", lambda path: path.with_suffix(".missing").stat())
    assert corpus.load_index(path) is not None


def test_an_index_that_another_process_removes_is_no_failure(code):
    path = path_of(code)
    path.parent.mkdir(parents=True)
    (path.parent / "removed.index").symlink_to("nowhere")
    corpus.save_index(path, (TOKENS.data, ORDER.data))
    assert corpus.load_index(path) is not None


def test_a_cache_that_cannot_be_written(code):
    path = path_of(code)
    corpus.folder().parent.mkdir(parents=True, exist_ok=True)
    corpus.folder().write_text("a file where the folder should be")
    assert corpus.load_index(path) is None
    with pytest.raises(SpecdecError, match="cannot write") as caught:
        corpus.save_index(path, (TOKENS.data, ORDER.data))
    assert caught.value.hint


def test_reading_that_was_interrupted_begins_again(code):
    stopped = Interrupt()
    stopped.set()
    with open_session(drafter="ngram", ngram_corpus=(str(code),)) as session:
        with pytest.raises(Interrupted):
            session.weights.read_corpus(stopped)
        session.weights.read_corpus(Interrupt())
        assert session.weights.corpus is not None
