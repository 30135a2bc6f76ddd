"""No second model: what followed the last time the text went like this is proposed again (prompt lookup).

Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding, with the longest match of any length instead of
a fixed one, and with a confidence that was earned: how often matches of that length have come true so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specdec_cli.decoding.chained import SURE
from specdec_cli.decoding.known import KnownLength
from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.automaton import SuffixAutomaton
from specdec_cli.drafters.corpus import DEPTH, Corpus
from specdec_cli.drafters.parts import Parts
from specdec_cli.drafters.reader import LEAST_REACH, Reader
from specdec_cli.drafters.record import Record

_LENGTHS = (2, 3, 4, 5, 7, 9, 13, 17, 25, 49)
_PRIOR = (0.15, 0.3, 0.45, 0.55, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""How often matches of 1, 2, 3, 4, 5-6, 7-8 ... tokens come true, before anything is known."""
_KEPT = 256
"""Places without a draft from which the policy learns at most, at once."""


class NgramDrafter:
    """Drafts a chain by following the automaton of prompt and answer. Deterministic: q is None.

    corpus: other texts, which are followed where they are the surer guide.
    """

    name = "ngram"
    needs_model = False
    needs = "nothing"
    helps = "answers that repeat the prompt or themselves: edits, code, summaries, lists, tables"
    token_s = 5e-6

    @classmethod
    def create(cls, parts: Parts) -> NgramDrafter:
        return cls(parts.corpus)

    def __init__(self, corpus: Corpus | None = None) -> None:
        self._text = SuffixAutomaton()
        self._record = Record(_PRIOR)
        self._reader = Reader(corpus) if corpus else None
        self._elsewhere = False
        """Whether the last sequel was the corpus's."""
        self._missed: list[tuple[float, float]] = []
        self._judged = range(0)
        """Places whose outcomes the policy has seen itself."""

    def start(self, prompt: Sequence[int]) -> int:
        self._text = SuffixAutomaton()
        self._missed.clear()
        if self._reader is not None:
            self._reader.start()
        self._judged = range(0)
        for token in prompt:
            self._text.append(token)
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        """What followed the longest suffix of the context that has occurred before, while the policy wants more."""
        self._read(context)
        for confidence, outcome in self._missed[-_KEPT:]:
            policy.hindsight(confidence, outcome)
        self._missed.clear()
        state = self._text.match
        tokens, sure = self._sequel(state, self._text.length(state), budget)
        if self._reader is not None:
            tokens, sure = self._surer(self._reader, context, tokens, sure, budget)
        if isinstance(policy, KnownLength):
            count = policy.choose(sure)
        else:
            count = next((i for i, confidence in enumerate(sure) if not policy.go_on(i, confidence)), len(sure))
        self._judged = range(len(context), len(context) + count)
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def guess(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> Draft:
        """For drafting what a draft model writes: what may follow `context` and then `ahead`, while it is more likely
        than not. `ahead` is not taken in, for it may yet be taken back.
        """
        self._read(context)
        self._missed.clear()
        text = self._text
        state, matched = text.match, text.length(text.match)
        for token in ahead:
            while (after := text.step(state, token)) < 0 and matched:
                state = text.shorter(state)
                matched = text.length(state)
            state, matched = (after, matched + 1) if after >= 0 else (state, 0)
        tokens, sure = self._sequel(state, matched, budget)
        count = next((i for i, confidence in enumerate(sure) if confidence < SURE), len(sure))
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def forget(self, length: int) -> None:
        """Nothing that may be taken back was taken in."""

    def _sequel(self, state: int, matched: int, most: int) -> tuple[list[int], list[float]]:
        """What followed a match of so many tokens, and how sure of each token that makes."""
        text, tokens, sure = self._text, list[int](), list[float]()
        reach = 1.0
        while len(tokens) < most and matched and reach > LEAST_REACH:
            token = text.follower(state)
            if token < 0:  # the match is the end of the text itself: a shorter one has a sequel
                state = text.shorter(state)
                matched = min(matched, text.length(state))
                continue
            confidence = self._confidence(matched)
            reach *= confidence
            tokens.append(token)
            sure.append(confidence)
            state = text.step(state, token)
            matched += 1
        return tokens, sure

    def _surer(
        self, reader: Reader, context: Sequence[int], tokens: list[int], sure: list[float], most: int
    ) -> tuple[list[int], list[float]]:
        """The text's own sequel or the corpus's: that which promises more tokens, among equals the text's."""
        self._elsewhere = False
        if self._text.length(self._text.match) < DEPTH:
            theirs = reader.sequel(context, most)
            if _promise(theirs[1]) > _promise(sure):
                self._elsewhere = True
                return theirs
        return tokens, sure

    def observe(self, step: Step) -> None:
        """Note which places the policy learns of by itself: the accepted tokens, and the first that was not."""
        if step.drafted:  # else the last draft is still what was judged
            start = self._judged.start
            self._judged = range(start, start + min(step.accepted + 1, len(self._judged)))

    def _read(self, context: Sequence[int]) -> None:
        """Take in what was emitted, and see what a draft would have been worth at each place."""
        text = self._text
        elsewhere = self._reader.learn(context) if self._reader is not None else {}
        for place in range(len(text), len(context)):
            token = context[place]
            state = text.match
            matched = text.length(state)
            worth = None
            if matched:
                outcome = float(text.follower(state) == token)
                worth = (self._confidence(matched), outcome)
                self._record.learn(bisect_right(_LENGTHS, matched), outcome)
            if self._elsewhere:
                worth = elsewhere.get(place, worth)
            if worth is not None and place not in self._judged:
                self._missed.append(worth)
            text.append(token)

    def _confidence(self, matched: int) -> float:
        return self._record.rate(bisect_right(_LENGTHS, matched))


def _promise(sure: Sequence[float]) -> float:
    """How many tokens of a draft can be expected to stand."""
    reach, tokens = 1.0, 0.0
    for confidence in sure:
        reach *= confidence
        tokens += reach
    return tokens
