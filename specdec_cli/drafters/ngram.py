"""No second model: what followed the last time the text went like this is proposed again (prompt lookup).

Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding, with the longest match of any length instead of
a fixed one, and with a confidence that was earned: how often matches of that length have come true so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from specdec_cli.decoding.known import KnownLength
from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.automaton import SuffixAutomaton
from specdec_cli.drafters.parts import Parts

_LENGTHS = (2, 3, 4, 5, 7, 9, 13, 17, 25, 49)
_PRIOR = (0.15, 0.3, 0.45, 0.55, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""How often matches of 1, 2, 3, 4, 5-6, 7-8 ... tokens come true, before anything is known, and what that weighs."""
_PRIOR_WEIGHT = 4.0
_MEMORY = 64.0
"""Outcomes after which the older ones begin to be forgotten."""
_LEAST_REACH = 0.05
"""Where it is so unlikely that all before it stand, no machine is cheap enough for another token."""
_KEPT = 256
"""Places without a draft from which the policy learns at most, at once."""


class NgramDrafter:
    """Drafts a chain by following the automaton of prompt and answer. Deterministic: q is None."""

    name = "ngram"
    needs_model = False
    needs = "nothing"
    helps = "answers that repeat the prompt or themselves: edits, code, summaries, lists, tables"
    token_s = 5e-6

    @classmethod
    def create(cls, parts: Parts) -> NgramDrafter:
        return cls()

    def __init__(self) -> None:
        self._text = SuffixAutomaton()
        self._tries = [_PRIOR_WEIGHT] * len(_PRIOR)
        self._hits = [_PRIOR_WEIGHT * rate for rate in _PRIOR]
        self._missed: list[tuple[float, float]] = []
        self._judged = range(0)
        """Places whose outcomes the policy has seen itself."""

    def start(self, prompt: Sequence[int]) -> int:
        self._text = SuffixAutomaton()
        self._missed.clear()
        for token in prompt:
            self._text.append(token)
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        """What followed the longest suffix of the context that has occurred before, while the policy wants more."""
        self._read(context)
        for confidence, outcome in self._missed[-_KEPT:]:
            policy.hindsight(confidence, outcome)
        self._missed.clear()
        tokens, sure = self._sequel(budget)
        if isinstance(policy, KnownLength):
            count = policy.choose(sure)
        else:
            count = next((i for i, confidence in enumerate(sure) if not policy.go_on(i, confidence)), len(sure))
        self._judged = range(len(context), len(context) + count)
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def _sequel(self, most: int) -> tuple[list[int], list[float]]:
        """What followed the longest match, and how sure of each token that makes."""
        text, tokens, sure = self._text, list[int](), list[float]()
        state = text.match
        matched = text.length(state)
        reach = 1.0
        while len(tokens) < most and matched and reach > _LEAST_REACH:
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

    def observe(self, step: Step) -> None:
        """Note which places the policy learns of by itself: the accepted tokens, and the first that was not."""
        start = self._judged.start
        self._judged = range(start, start + min(step.accepted + 1, len(self._judged)))

    def _read(self, context: Sequence[int]) -> None:
        """Take in what was emitted, and see what a draft would have been worth at each place."""
        text = self._text
        for place in range(len(text), len(context)):
            token = context[place]
            state = text.match
            matched = text.length(state)
            if matched:
                outcome = float(text.follower(state) == token)
                if place not in self._judged:
                    self._missed.append((self._confidence(matched), outcome))
                self._learn(matched, outcome)
            text.append(token)

    def _confidence(self, matched: int) -> float:
        kind = bisect_right(_LENGTHS, matched)
        return self._hits[kind] / self._tries[kind]

    def _learn(self, matched: int, outcome: float) -> None:
        kind = bisect_right(_LENGTHS, matched)
        self._tries[kind] += 1
        self._hits[kind] += outcome
        if self._tries[kind] > _MEMORY:
            self._tries[kind] /= 2
            self._hits[kind] /= 2
