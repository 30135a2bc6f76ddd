"""Bytes to text, and stop strings."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.text import TextStream


def stream(chunks, stop=()):
    """Push each chunk as a token; what each returned, and the flush."""
    text = TextStream(lambda token: chunks[token], stop)
    return [text.push(i) for i in range(len(chunks))], text.flush(), text.stopped


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(alphabet="aé数🙂", max_size=30), data=st.data())
def test_any_split_of_utf8_comes_back_whole(text, data):
    """Characters of one, two, three and four bytes."""
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    pieces, tail, _ = stream(chunks)
    assert "".join(pieces) + tail == text


SMILE, E_ACUTE = "🙂".encode(), "é".encode()


@pytest.mark.parametrize(
    ("chunks", "stop", "pieces", "tail", "stopped"),
    [
        ([SMILE[:1], SMILE[1:3], SMILE[3:], b"!"], [], ["", "", "🙂", "!"], "", False),
        ([b"\xff", b"a"], [], ["\ufffd", "a"], "", False),
        ([E_ACUTE[:1], b"a"], [], ["", "\ufffda"], "", False),
        ([b"ok", SMILE[:3]], [], ["ok", ""], "", False),  # a character that the end cuts off is left out
        ([b"ok E", SMILE[:3]], ["END"], ["ok ", ""], "E", False),
        ([b"ab", b"END", b"cd"], ["END"], ["ab", "", ""], "", True),
        ([b"abE", b"ND"], ["END"], ["ab", ""], "", True),
        ([b"abE", b"N", b"x"], ["END"], ["ab", "", "ENx"], "", False),
        ([b"one two"], ["two", "one"], [""], "", True),
        ([b"ok ", b"\xff"], ["\ufffd"], ["ok ", ""], "", True),
    ],
)
def test_what_is_shown_with_each_token(chunks, stop, pieces, tail, stopped):
    assert stream(chunks, stop) == (pieces, tail, stopped)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(alphabet="abE", max_size=20), stop=st.text(alphabet="abE", min_size=1, max_size=4))
def test_the_stop_string_is_never_shown(text, stop):
    pieces, tail, stopped = stream([char.encode() for char in text], [stop])
    shown = "".join(pieces) + tail
    assert shown == text.split(stop)[0]
    assert stopped == (stop in text)


def test_a_long_stop_string_takes_no_time():
    began = time.process_time()
    assert stream([b"ab", b"x"], ["b" + "x" * 300_000]) == (["a", ""], "bx", False)
    assert time.process_time() - began < 0.5
