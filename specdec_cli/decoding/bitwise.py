"""Which passes give the same bits: what `--bitwise` keeps to, and what a report says of a machine's rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec_cli.decoding.costs import Curve


@dataclass(frozen=True, slots=True)
class Agreement:
    """Passes of `reference` to `widest` tokens give the same logits, and leave the same keys and values, bit for bit.

    reference: tokens in a pass that writes one: 1; or 2, the second unread, where a single one rounds unlike all
    others. contexts: tokens in the cache where it was measured. threads: CPU threads it holds for. off: tokens in a
    pass -> by how much, at most, its logits differ from the reference's.
    """

    reference: int
    widest: int
    threads: int
    contexts: tuple[int, ...]
    off: Mapping[int, float]

    def __post_init__(self) -> None:
        if not (1 <= self.reference <= 2 and self.reference <= self.widest <= 512 and self.contexts):
            raise ValueError("not an agreement: a figure is out of range")

    def sizes(self, tokens: int) -> list[int]:
        """Of the passes that read so many tokens: as few as possible, about equally large."""
        count = -(-tokens // self.widest)
        least, larger = divmod(tokens, count)
        return [least + 1] * larger + [least] * (count - larger)

    def padding(self, size: int) -> int:
        """Unread tokens to add to a pass of so many."""
        return max(self.reference - size, 0)

    def cost(self, single: Curve, longest: int) -> Curve:
        """Seconds to read up to so many tokens in such passes, from those of single passes."""
        lengths = range(1, longest + 1)
        return Curve({n: sum(single(size + self.padding(size)) for size in self.sizes(n)) for n in lengths})

    def __str__(self) -> str:
        where = f"{self.threads} thread{'s' * (self.threads > 1)}, {_listed(self.contexts)} tokens of context"
        text = f"no pass of several tokens agrees bit for bit with a pass of one ({where})"
        if self.widest > self.reference:
            text = f"passes of {self.reference} to {self.widest} tokens agree bit for bit ({where})"
        if self.off:
            text += f"; of {_listed(sorted(self.off))} they differ by up to {max(self.off.values()):.2g} in a logit"
        return text


def _listed(numbers: Sequence[int]) -> str:
    words = [f"{number:,}" for number in numbers]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
