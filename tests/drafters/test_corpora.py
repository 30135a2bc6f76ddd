"""Which files a corpus is, and its index: what it finds; kept, read again, noticed when damaged or out of date."""

import os
import tracemalloc
from time import perf_counter

import numpy as np
import pytest
from engines import open_session
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.errors import Interrupted, UsageError
from specdec_cli.drafters import corpus
from specdec_cli.drafters.corpus_index import DEPTH, END, Corpus, join, sort
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.llama.interrupt import Interrupt

KEPT = np.array([-1, 5, 6, 7, -1], np.int32).data, np.array([2, 3], np.int32).data


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


# Its files


def texts(*names):
    return {
        source.path.name: text
        for source in corpus.find([str(n) for n in names])
        if (text := corpus.text_of(source)) is not None
    }


def test_of_a_folder_what_is_text_and_what_is_named_even_if_hidden_or_large_or_with_a_byte_order_mark(code, tmp_path):
    assert texts(code) == {"a.py": "a = 1\n", "b.py": "b = 1\n", "c.txt": "ä = 1\n"}
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1")
    named = texts(code / ".hidden", code / "large.txt", tmp_path / "bom.py")
    assert list(named) == [".hidden", "large.txt", "bom.py"] and named["bom.py"] == "x = 1"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *(("image.png", "is not text"), ("latin.txt", "byte 0xe9 at 3"), ("dangling", "no file"), ("pipe", "regular")),
        *(("empty", "is empty"), ("empty.txt", "is empty")),
    ],
)
def test_what_is_named_must_be_text(code, name, says):
    (code / "empty").mkdir()
    (code / "empty.txt").touch()
    with pytest.raises(UsageError, match=says) as caught:
        texts(code / name)
    assert name in str(caught.value) and caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize("what", ["file", "folder", "link to a folder"])
def test_what_may_not_be_read(code, monkeypatch, what):
    (code.parent / "link").symlink_to(code)
    name = {"file": code / "a.py", "folder": code}.get(what, code.parent / "link")

    def refused(*_args, **_options):
        raise PermissionError(13, "Permission denied", str(code))

    monkeypatch.setattr("pathlib.Path.open" if what == "file" else "os.scandir", refused)
    with pytest.raises(UsageError, match="Permission denied"):
        corpus.find([str(name)])


def test_a_corpus_that_is_too_large(code, monkeypatch):
    monkeypatch.setattr(corpus, "_MAX_IN_ALL", 10)
    with pytest.raises(UsageError, match="5 files"):
        corpus.find([str(code)])


# Its index on disk


def header(**metadata):
    return Header("m.gguf", 3, {"tokenizer.ggml.model": "gpt2", **metadata}, (), 0)


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


@pytest.fixture
def kept(code):
    corpus.save_index(path_of(code), KEPT)
    return path_of(code)


@pytest.mark.parametrize("change", ["touch", "grow", "add"])
def test_a_change_asks_for_another_index_in_place_of_the_old(code, kept, change):
    if change == "touch":
        os.utime(code / "a.py", (1, 1))
    elif change == "grow":
        before = (code / "a.py").stat()
        (code / "a.py").write_text("a = 10\n")
        os.utime(code / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        (code / "new.py").write_text("n = 1\n")
    new = path_of(code)
    assert new != kept and corpus.load_index(new) is None
    corpus.save_index(new, KEPT)
    assert [path.name for path in corpus.folder().iterdir()] == [new.name]


def test_an_index_is_mapped_as_it_was_kept(code):
    path = path_of(code)
    assert corpus.load_index(path) is None and corpus.kept_bytes() == 0
    corpus.save_index(path, KEPT)
    tokens, order = corpus.load_index(path)
    assert (tokens.tolist(), order.tolist()) == ([-1, 5, 6, 7, -1], [2, 3])
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
def test_a_damaged_index_is_none(kept, damage):
    kept.write_bytes(damage(kept.read_bytes()))
    assert corpus.load_index(kept) is None
    corpus.save_index(kept, KEPT)
    assert corpus.load_index(kept) is not None


def test_what_was_not_used_for_long_goes_first(code, monkeypatch):
    paths = [path_of(code / name) for name in ("a.py", "b.py", "sub")]
    for age, path in enumerate(paths[:2]):
        corpus.save_index(path, KEPT)
        os.utime(path, (1000 + age, 1000 + age))
    corpus.load_index(paths[0])  # which uses it
    monkeypatch.setattr(corpus, "_MAX_KEPT", 2 * paths[0].stat().st_size)
    corpus.save_index(paths[2], KEPT)
    assert set(corpus.folder().iterdir()) == {paths[0], paths[2]}


def test_an_index_that_another_process_removes_or_that_cannot_be_touched_is_no_failure(kept, monkeypatch):
    (kept.parent / "removed.index").symlink_to("nowhere")
    corpus.save_index(kept, KEPT)
    monkeypatch.setattr(os, "utime", lambda path: path.with_suffix(".missing").stat())
    assert corpus.load_index(kept) is not None


def test_reading_that_was_interrupted_begins_again(code):
    stopped = Interrupt()
    stopped.set()
    with open_session(drafter="ngram", ngram_corpus=(str(code),)) as session:
        with pytest.raises(Interrupted):
            session.weights.read_corpus(stopped)
        session.weights.read_corpus(Interrupt())
        assert session.weights.corpus is not None


# What it finds, against a plain search through the texts


def searched(texts, context):
    """The longest end of the context that is followed by something, and what follows it: by looking everywhere."""
    for length in range(min(DEPTH, len(context)), 0, -1):
        past = list(context[-length:])
        found = [
            (text[at - length : at], text[at:])
            for text in texts
            for at in range(length, len(text))
            if text[at - length : at] == past
        ]
        if found:
            return length, [rest for _, rest in found]
    return 0, []


def repeated(drawn):
    """A text that repeats a phrase, and a context that has come in it."""
    phrase, size, cut = drawn
    text = (phrase * size)[:size]
    return [text, text[7:]], text[:cut] + phrase


TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=60), max_size=5)
PHRASES = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(20, 120), st.integers(0, 60))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.tuples(TEXTS, st.lists(st.integers(0, 4), max_size=60)), PHRASES.map(repeated)))
def test_the_longest_match_is_what_a_plain_search_finds(given):
    texts, context = given
    corpus = Corpus.of(texts)
    length, places = corpus.longest(context)
    tokens, order = corpus._tokens.tolist(), corpus._order.tolist()
    rests = [tokens[order[place] :] for place in places]
    expected, followers = searched(texts, context)
    assert (length, sorted(rest[: rest.index(END)] for rest in rests)) == (expected, sorted(followers))


def test_a_sequel_ends_with_its_text():
    for texts, expected in (([[3, 1, 2, 7, 8], [5, 6]], [(7, 1, 1), (8, 1, 1)]), ([[1, 2], [3]], [])):
        corpus = Corpus.of(texts)
        assert list(corpus.sequel(corpus.longest([1, 2])[1])) == expected


@pytest.mark.slow
def test_a_million_tokens_take_seconds_and_megabytes():
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 32000, rng.integers(2, 30)).tolist() for _ in range(20_000)]
    text = [token for i in rng.integers(20_000, size=70_000).tolist() for token in phrases[i]][:1_000_000]
    tokens = join([text])
    assert len(tokens) > 1_000_000
    tracemalloc.start()
    before = perf_counter()
    order = sort(tokens)
    seconds, (_, peak) = perf_counter() - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 30, "half a second on a quiet machine"
    assert peak < 200e6 and tokens.nbytes + order.nbytes <= 8 * len(tokens)
    corpus, laps = Corpus(tokens.data, order.data), []
    for at in rng.integers(100, 900_000, size=300).tolist():
        context = text[at - 100 : at]
        before = perf_counter()
        _, places = corpus.longest(context)
        laps.append(perf_counter() - before)
        assert at + 1 in [corpus._order[place] for place in places], "where it was taken from"
    assert sorted(laps)[150] < 1e-3, "10 us on a quiet machine"
