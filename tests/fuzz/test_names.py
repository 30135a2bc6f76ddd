"""Random names that a terminal would obey, in every place that holds one, on a pseudo-terminal and in a pipe."""

import random

import fuzzing
import pytest
from hostile import PIECES, PLACES, assert_shown
from terminal_child import on_terminal

pytestmark = pytest.mark.fuzz
FEW = 8


def payload(chance: random.Random) -> str:
    pieces = chance.choices((*PIECES, chr(chance.randrange(1, 0x3000)), "name"), k=chance.randint(1, 12))
    return "n" + "".join(pieces)


@pytest.mark.parametrize("place", PLACES)
def test_names(tmp_path, place):
    for i, chance in enumerate(fuzzing.cases(FEW, f"names/{place}")):
        folder = tmp_path / str(i)
        folder.mkdir()
        text = payload(chance)
        args = [str(each) for each in PLACES[place](folder, text)]
        terminal = {"TERM": "xterm", "COLUMNS": str(chance.choice((20, 40, 80, 200)))}
        ended = fuzzing.in_child(on_terminal, args, **terminal)
        about = ascii((place, text))
        assert ended.code in fuzzing.EXIT_CODES and "Traceback" not in ended.text, f"{about}\n{ended!a}"
        assert ended.seconds < 30, about  # compare measures, and the machine may be busy
        assert_shown(ended.out.decode("utf-8", "replace"), terminal=True)
        if i % 2 == 0:
            ended = fuzzing.specdec(*args)
            assert ended.code in fuzzing.EXIT_CODES and "Traceback" not in ended.text, f"{about}\n{ended!a}"
            assert_shown(ended.err.decode("utf-8", "replace"))
            if "recording" not in place:
                assert_shown(ended.out.decode("utf-8", "replace"))
