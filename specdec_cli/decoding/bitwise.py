"""Which pass sizes give the same bits: the sizes that `--bitwise` uses, and a report's line about rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdec_cli.decoding.costs import Curve
from specdec_cli.decoding.wording import counted, listed


@dataclass(frozen=True, slots=True)
class Agreement:
    """Passes of `reference` to `widest` tokens give the same logits, keys and values, bit for bit.

    reference: tokens in a pass that generates one token: 1; or 2, the second ignored, if a pass of one rounds
    differently from all others. contexts: the cache lengths at which it was measured. threads: CPU threads it was
    measured with. off: pass size -> the largest difference of its logits from the reference's.
    """

    reference: int
    widest: int
    threads: int
    contexts: tuple[int, ...]
    off: Mapping[int, float]

    def __post_init__(self) -> None:
        if not (1 <= self.reference <= 2 and self.reference <= self.widest <= 512 and self.contexts):
            raise ValueError("invalid agreement: a value is out of range")

    def sizes(self, tokens: int) -> list[int]:
        """The sizes of the passes that read this many tokens: as few as possible, about equally large."""
        count = -(-tokens // self.widest)
        least, larger = divmod(tokens, count)
        return [least + 1] * larger + [least] * (count - larger)

    def padding(self, size: int) -> int:
        """How many ignored tokens to add to a pass of this size."""
        return max(self.reference - size, 0)

    def cost(self, single: Curve, longest: int) -> Curve:
        """Seconds to read 1 to `longest` tokens in such passes. single: seconds for one pass over n tokens."""
        lengths = range(1, longest + 1)
        return Curve({n: sum(single(size + self.padding(size)) for size in self.sizes(n)) for n in lengths})

    @property
    def notes(self) -> tuple[str, ...]:
        """Why answers with --bitwise are slower here, if they are."""
        if self.widest == self.reference:
            return (f"{self}, so --bitwise verifies drafts token by token, which saves no time",)
        if self.reference > 1:
            return (
                "passes over one token round differently here, so --bitwise reads a single token in a pass over two, "
                "which takes longer; -t 1 may avoid that",
            )
        return ()

    def __str__(self) -> str:
        where = f"{counted(self.threads, 'thread')}, {_numbers(self.contexts)} tokens of context"
        text = f"no pass over several tokens agrees bit for bit with a pass over one ({where})"
        if self.widest > self.reference:
            text = f"passes of {self.reference} to {self.widest} tokens agree bit for bit ({where})"
        if self.off:
            text += f"; logits of {_numbers(sorted(self.off))} differ by up to {max(self.off.values()):.2g}"
        return text


def _numbers(numbers: Sequence[int]) -> str:
    return listed([f"{number:,}" for number in numbers])
