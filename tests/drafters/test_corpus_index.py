"""The index of other texts against a plain search through them."""

import tracemalloc
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.drafters.corpus_index import DEPTH, END, Corpus, join, sort

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=60), max_size=5)


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
    assert seconds < 10, "half a second on a quiet machine"
    assert peak < 200e6 and tokens.nbytes + order.nbytes <= 8 * len(tokens)
    corpus, laps = Corpus(tokens.data, order.data), []
    for at in rng.integers(100, 900_000, size=300).tolist():
        context = text[at - 100 : at]
        before = perf_counter()
        _, places = corpus.longest(context)
        laps.append(perf_counter() - before)
        assert at + 1 in [corpus._order[place] for place in places], "where it was taken from"
    assert sorted(laps)[150] < 100e-6, "10 us on a quiet machine"
