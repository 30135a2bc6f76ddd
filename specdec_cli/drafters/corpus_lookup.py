"""What a corpus proposes for an answer, with a confidence that was earned: how often such proposals came true."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.success_rates import SuccessRates

_LENGTHS = (2, 3, 5, 9, 17)
_PRIOR = (
    (0.08, 0.2, 0.3, 0.25, 0.55, 0.85),
    (0.08, 0.2, 0.35, 0.35, 0.55, 0.85),
    (0.12, 0.2, 0.45, 0.45, 0.7, 0.9),
    (0.12, 0.25, 0.5, 0.65, 0.8, 0.9),
    (0.12, 0.3, 0.55, 0.8, 0.85, 0.95),
    (0.15, 0.35, 0.6, 0.9, 0.95, 0.98),
)
"""How often matches of 1, 2, 3-4, 5-8 ... tokens come true; each where at most a quarter, at most half or more of
the places agree, where there is only one, where 2 to 4 are of one mind, and where more are. As measured on Python's
library: agreement says more than length."""
MIN_REACH = 0.05
"""Where it is so unlikely that all before it stand, no machine is cheap enough for another token."""


class CorpusLookup:
    """Looks an answer up in a corpus, and learns what that is worth."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._record = SuccessRates([rate for rates in _PRIOR for rate in rates])
        self._expected: list[tuple[int, int]] = []
        self._since = 0

    def start(self) -> None:
        """Another text begins."""
        self._expected = []

    def sequel(self, context: Sequence[int], most: int) -> tuple[list[int], list[float]]:
        """How the corpus goes on where it has the longest end of the context, and how sure of each token that makes."""
        tokens, sure, expected = list[int](), list[float](), list[tuple[int, int]]()
        matched, places = self._corpus.longest(context)
        reach, rate = 1.0, self._record.rate
        for token, votes, voters in self._corpus.sequel(places):
            kind = _kind(matched, votes, voters)
            confidence = rate(kind)
            reach *= confidence
            tokens.append(token)
            sure.append(confidence)
            expected.append((token, kind))
            matched += 1
            if reach <= MIN_REACH or len(tokens) == most:
                break
        self._expected, self._since = expected, len(context)
        return tokens, sure

    def learn(self, context: Sequence[int]) -> None:
        """See what became of the last sequel, up to the first token that was not right."""
        if len(context) <= self._since:  # it hasn't grown
            return
        for place, (token, kind) in enumerate(self._expected, self._since):
            if place >= len(context):
                break
            right = context[place] == token
            self._record.learn(kind, float(right))
            if not right:
                break
        self._expected = []


def _kind(matched: int, votes: int, voters: int) -> int:
    """The kind of an expectation: how long the match, and how much its places agree."""
    if votes < voters:
        agreement = 0 if 4 * votes <= voters else 1 if 2 * votes <= voters else 2
    else:
        agreement = 3 if voters == 1 else 4 if voters < 5 else 5
    return 6 * bisect_right(_LENGTHS, matched) + agreement
