"""What a tuning might have recorded of a pair."""

from specdec_cli.measure.acceptance_traces import Recording
from specdec_cli.measure.simulate import AHEAD, Answer


def recording(greedy: bool = True) -> Recording:
    """One answer of 120 tokens, three of four of which the draft stands for."""
    stands = tuple(i % 4 != 3 for i in range(120))
    astray = tuple(() if stood else (0.5,) * (AHEAD - 1) for stood in stands)
    return Recording(greedy, (Answer("code", 10, (0.8,) * 120, stands, astray),), {})
