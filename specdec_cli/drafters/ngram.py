"""No second model: what followed the last time the text went like this is proposed again (prompt lookup).

Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding, with the longest match of any length instead of
a fixed one, with a cursor that finds its place again behind a change, and with a confidence that was earned: how often
such expectations have come true so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from operator import mul

from specdec_cli.decoding.types import MIN_FIRST_CONFIDENCE, NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.corpus_index import DEPTH, Corpus
from specdec_cli.drafters.corpus_lookup import MIN_REACH, CorpusLookup
from specdec_cli.drafters.cursor import KINDS, LONGEST_MATCH, MIN_PASSAGE, Cursor, Resumption
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.success_rates import SuccessRates
from specdec_cli.drafters.suffix_automaton import PromptCache, SuffixAutomaton

_LENGTHS = (2, 3, 4, 5, 7, 9, 13, 17, 25, 49)
_PRIOR = (
    (0.08, 0.15, 0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    (0.2, 0.38, 0.5, 0.6, 0.67, 0.71, 0.79, 0.85, 0.87, 0.92, 0.95),
    (0.43, 0.65, 0.71, 0.78, 0.87, 0.87, 0.92, 0.94, 0.95, 0.97, 0.97),
)
"""How often matches of 1, 2, 3, 4, 5-6, 7-8 ... tokens come true, before anything is known: where what followed them
differed, where they have occurred once, and where the same followed each time. Half a log odd below what was seen in
real models' answers, for at the start of an answer a draft in vain costs more than one that was not sent. Agreement
says more than length.
"""
_RESUMED = (
    (0.3, 0.3, 0.0, 0.6, 0.6, 0.25, 0.85, 0.75, 0.4, 0.85, 0.8, 0.6),
    (0.6, 0.6, 0.0, 0.9, 0.8, 0.45, 0.9, 0.82, 0.7, 0.9, 0.85, 0.8),
    (0.2, 0.3, 0.0, 0.6, 0.75, 0.2, 0.5, 0.75, 0.25, 0.7, 0.75, 0.4),
)
"""How often a passage goes on where the cursor takes it to, by `Resumption.kind`, before anything is known: where there
is no match, where the longest match says the same, and where it differs. Measured on edits by Qwen2.5-Coder 1.5B."""
_PRIOR_WEIGHT = 8.0
_END = -1
"""No token: nothing follows a prediction."""


class NgramDrafter:
    """Drafts a chain by following the automaton of prompt and answer. Deterministic: q is None.

    corpus: other texts, which are followed where they are the surer guide. prediction: what the answer will repeat, but
    for changes. prompts: kept from one answer to the next.
    """

    name = "ngram"
    needs_model = False
    needs = "nothing"
    helps = "answers that repeat the prompt or themselves: edits, code, summaries, lists, tables"
    token_s = 5e-6

    @classmethod
    def create(cls, context: DrafterContext) -> NgramDrafter:
        return cls(context.corpus, context.prediction, context.prompts)

    def __init__(
        self, corpus: Corpus | None = None, prediction: Sequence[int] = (), prompts: PromptCache | None = None
    ) -> None:
        self._before = [*prediction, _END] if prediction else []
        """What the text begins with, before the prompt."""
        self._prompts = prompts or PromptCache()
        self._text = SuffixAutomaton()
        self._cursor = Cursor(self._text.tokens)
        self._record = SuccessRates([rate for rates in _PRIOR for rate in rates], _PRIOR_WEIGHT)
        self._resumed = SuccessRates([rate for rates in _RESUMED for rate in rates], _PRIOR_WEIGHT)
        self._reader = CorpusLookup(corpus) if corpus else None

    def start(self, prompt: Sequence[int]) -> int:
        self._text = self._prompts.read([*self._before, *prompt])
        self._cursor = Cursor(self._text.tokens)
        if self._reader is not None:
            self._reader.start()
        if self._before:
            self._cursor.follow(0, followed=0)
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        """What followed the longest suffix of the context that has occurred before, or what the passage that the answer
        changes goes on with, while the policy wants more.
        """
        self._read(context)
        state = self._text.match
        tokens, sure = self._sequel(state, self._text.length(state), budget, self._cursor.resumptions())
        if self._reader is not None:
            tokens, sure = self._surer(self._reader, context, tokens, sure, budget)
        count = policy.choose(sure)
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def guess(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> Draft:
        """For drafting what a draft model writes: what may follow `context` and then `ahead`, while it is more likely
        than not. `ahead` is not taken in, for it may yet be taken back.
        """
        tokens, sure = self.sequel(context, ahead, budget)
        count = next((i for i, confidence in enumerate(sure) if confidence < MIN_FIRST_CONFIDENCE), len(sure))
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def sequel(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> tuple[list[int], list[float]]:
        """What follows `context` and then `ahead`, which isn't taken in, and how sure of each token that is."""
        if not len(self._text):  # not started yet
            return [], []
        self._read(context)
        text, cursor = self._text, copy(self._cursor)
        state, matched = text.match, text.length(text.match)
        for token in ahead:
            state, matched = self._stepped(state, matched, token)
            cursor.advance(token)
        return self._sequel(state, matched, budget, cursor.resumptions())

    def forget(self, length: int) -> None:
        """Nothing that may be taken back was taken in."""

    def _sequel(
        self, state: int, matched: int, most: int, resumptions: Sequence[Resumption]
    ) -> tuple[list[int], list[float]]:
        """What follows a match of so many tokens, or the surest resumption, and how sure of each token that is."""
        text, tokens, sure = self._text, list[int](), list[float]()
        reach = 1.0
        while len(tokens) < most and reach > MIN_REACH:
            state, matched, token = self._continued(state, matched)
            confidence = self._record.rate(self._kind(state, matched)) if token >= 0 else 0.0
            taken: Resumption | None = None
            for each in resumptions:
                rate = self._resumed.rate(self._kind_of(each, token))
                if rate >= confidence or text.tokens[each.place] == token:
                    taken, token, confidence = each, text.tokens[each.place], max(rate, confidence)
            if token < 0:
                break
            reach *= confidence
            tokens.append(token)
            sure.append(confidence)
            state, matched = self._stepped(state, matched, token)
            goes_on = taken and taken.matched < LONGEST_MATCH and taken.place + 1 < len(text)
            resumptions = [taken.next()] if taken and goes_on else ()
        return tokens, sure

    def _continued(self, state: int, matched: int) -> tuple[int, int, int]:
        """The longest match within this one that has been continued, and by what token; -1 if there is none."""
        text = self._text
        while matched:
            if (token := text.follower(state)) >= 0:
                return state, matched, token
            state = text.shorter(state)  # the match is the end of the text itself: a shorter one has a sequel
            matched = min(matched, text.length(state))
        return state, 0, -1

    def _stepped(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """The longest match after one more token."""
        text = self._text
        while (after := text.step(state, token)) < 0 and matched:
            state = text.shorter(state)
            matched = text.length(state)
        return (after, matched + 1) if after >= 0 else (state, 0)

    def _surer(
        self, reader: CorpusLookup, context: Sequence[int], tokens: list[int], sure: list[float], most: int
    ) -> tuple[list[int], list[float]]:
        """The text's own sequel or the corpus's: that which promises more tokens, among equals the text's."""
        if self._text.length(self._text.match) < DEPTH:
            theirs = reader.sequel(context, most)
            if sum(accumulate(theirs[1], mul)) > sum(accumulate(sure, mul)):
                return theirs
        return tokens, sure

    def observe(self, step: Step) -> None:
        """What came of a draft is read with the rest of the text."""

    def _read(self, context: Sequence[int]) -> None:
        """Take in what was emitted, and note at each place whether a draft would have been right there."""
        text = self._text
        if self._reader is not None:
            self._reader.learn(context)
        for token in context[len(text) - len(self._before) :]:
            state = text.match
            if matched := text.length(state):
                self._record.learn(self._kind(state, matched), float(text.follower(state) == token))
            expected = self._continued(state, matched)[2]
            for each in self._cursor.resumptions():
                self._resumed.learn(self._kind_of(each, expected), float(text.tokens[each.place] == token))
            self._cursor.advance(token)
            text.append(token)
            if self._cursor.lost and text.length(text.match) >= MIN_PASSAGE:
                self._cursor.follow(text.first_end(text.match) + 1)

    def _kind(self, state: int, matched: int) -> int:
        """The kind of an expectation: whether the occurrences agree, and how long the match is."""
        return len(_PRIOR[0]) * self._text.agreement(state) + bisect_right(_LENGTHS, matched)

    def _kind_of(self, resumption: Resumption, expected: int) -> int:
        """The kind of a resumption, where the longest match expects this token, or none (-1)."""
        differs = self._text.tokens[resumption.place] != expected
        return KINDS * (0 if expected < 0 else 1 + differs) + resumption.kind
