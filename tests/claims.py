"""What a display claims: the ratios that it shows, and the lengths of its bars."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from specdec_cli.decoding.statistics import Interval

_CELLS = " ▏▎▍▌▋▊▉█"


def ratios_in(text: str) -> list[str]:
    """The ratios that a text shows, such as 1.42x, but for those that it calls predictions."""
    return re.findall(r"\d+\.\d\dx", re.sub(r"would give about \d+\.\d\dx", "", text))


def excludes_one(interval: Interval | None) -> bool:
    """Whether an interval excludes 1 as it is printed."""
    return bool(interval and interval.bounds) and not float(f"{interval.low:.2f}") <= 1 <= float(f"{interval.high:.2f}")


def cells(bar: str) -> float:
    """The length of a bar of blocks."""
    return sum(_CELLS.index(each) for each in bar) / 8


def assert_in_proportion(lengths: Sequence[float], speeds: Sequence[float], error: float) -> None:
    """error: as a share of the longest bar."""
    for length, speed in zip(lengths, speeds, strict=True):
        assert length / max(lengths) == pytest.approx(speed / max(speeds), abs=error)
