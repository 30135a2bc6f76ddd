"""Which passes agree, how a draft is cut into them, and what that costs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import Curve


def agreement(reference=1, widest=3):
    return Agreement(reference, widest, 2, (96, 320), {})


@given(reference=st.integers(1, 2), more=st.integers(0, 16), tokens=st.integers(1, 40))
def test_every_pass_agrees_and_none_could_be_spared(reference, more, tokens):
    found = agreement(reference, reference + more)
    sizes = found.sizes(tokens)
    assert sum(sizes) == tokens and len(sizes) == -(-tokens // found.widest)
    assert all(reference <= size + found.padding(size) <= found.widest for size in sizes)
    assert max(sizes) - min(sizes) <= 1


def test_a_draft_costs_what_its_pieces_do():
    single = Curve({1: 1.0, 2: 1.5, 3: 2.0, 8: 9.0})
    assert agreement(1, 3).cost(single, 7).points == {1: 1.0, 2: 1.5, 3: 2.0, 4: 3.0, 5: 3.5, 6: 4.0, 7: 5.0}
    padded = agreement(2, 3).cost(single, 4)
    assert padded.points == {1: 1.5, 2: 1.5, 3: 2.0, 4: 3.0}, "a token alone costs a pass of two"


@pytest.mark.parametrize(
    "damage", [{"reference": 3}, {"widest": 0}, {"widest": 10**9}, {"contexts": []}, {"off": {"a": 1}}], ids=str
)
def test_a_damaged_one_is_refused(damage):
    with pytest.raises(ValueError, match=r"invalid agreement|Expected"):
        msgspec.convert({**msgspec.to_builtins(agreement()), **damage}, Agreement)
