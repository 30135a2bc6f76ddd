"""The suffix automaton against searching the text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.drafters.suffix_automaton import SuffixAutomaton

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def automaton(text) -> SuffixAutomaton:
    found = SuffixAutomaton()
    for token in text:
        found.append(token)
    return found


def places(text, part) -> list[int]:
    """Where a part begins in the text."""
    return [i for i in range(len(text) - len(part) + 1) if text[i : i + len(part)] == part]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(TEXTS)
def test_the_match_is_the_longest_suffix_that_occurred_before(text):
    found = automaton(text)
    longest = max((n for n in range(len(text)) if n and len(places(text, text[-n:])) > 1), default=0)
    assert found.length(found.match) == longest
    assert list(found.tokens) == text


@settings(max_examples=100, derandomize=True, deadline=None)
@given(TEXTS)
def test_the_follower_is_a_token_that_followed(text):
    found = automaton(text)
    state = found.match
    while state:
        suffix = text[-found.length(state) :]
        followed = {text[at + len(suffix)] for at in places(text, suffix) if at + len(suffix) < len(text)}
        assert found.follower(state) in followed
        state = found.shorter(state)


def test_the_most_frequent_and_then_the_latest_sequel_wins():
    often = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 4, 6, 1, 2]
    found = automaton(often)
    assert found.follower(found.match) == 3, "three times against one"
    late = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 4, 7, 1, 2]
    assert automaton(late).follower(automaton(late).match) == 4
