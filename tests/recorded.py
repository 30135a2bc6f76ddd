"""What a tuning might have recorded of a pair, and a run of `specdec run --trace`."""

from specdec_cli.decoding.types import Done, Event, Prefill, Step, Token
from specdec_cli.measure.acceptance_traces import Recording
from specdec_cli.measure.simulate import AHEAD, Answer


def recording(greedy: bool = True) -> Recording:
    """One answer of 120 tokens, three of four of which the draft stands for."""
    stands = tuple(i % 4 != 3 for i in range(120))
    astray = tuple(() if stood else (0.5,) * (AHEAD - 1) for stood in stands)
    return Recording(greedy, (Answer("code", 10, (0.8,) * 120, stands, astray),), {})


def step(index: int, at: float, *tokens: Token, drafted=(), rejected=(), **more) -> Step:
    accepted = sum(token.origin == "accepted" for token in tokens)
    return Step(index, tokens, drafted, accepted, rejected, "model", 0.01, 0.02, 0.0, at, **more)


def events(scale: float = 1.0) -> list[Event]:
    """Five tokens in three steps: one alone, a draft accepted in part, a draft accepted whole; and a text held back."""
    return [
        Prefill("target", 4, 0.01, 0.01 * scale),
        step(0, 0.1 * scale, Token(1, "first ", "plain", 1.0)),
        step(
            1,
            0.4 * scale,
            Token(2, "kept ", "accepted", 0.75, 0.5),
            Token(3, "<b>mended</b>\n", "correction", 0.25),
            drafted=(2, 8, 9),
            rejected=("wrong ", "unseen\n"),
        ),
        step(2, 0.8 * scale, Token(4, "same", "accepted", 1.0, 1.0), Token(5, "  extra", "bonus", 0.5), drafted=(4,)),
        Done("stop", "!", (), 0.9 * scale),
    ]
