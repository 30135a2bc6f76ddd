"""The types of speculative decoding: drafts, verdicts, steps, and the protocols that make and consume them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import StandardSampler

Logits: TypeAlias = NDArray[np.float32]
"""(rows, n_vocab). Row 0 follows the pending token, row i + 1 draft token i. Valid until the next forward pass."""


class Rows(Protocol):
    """Rows of logits by number."""

    def __getitem__(self, number: int, /) -> Any: ...


Origin: TypeAlias = Literal["accepted", "correction", "bonus", "plain", "forced"]
"""Where a token came from: the draft; the target, in place of a rejected token, after a fully accepted draft, or
without a draft; or the constraint, which allowed no other.
"""

FinishReason: TypeAlias = Literal["stop", "length", "stop_string", "context", "interrupted"]


class LengthReason(str, Enum):
    """Why a draft has its length, as displays show it and traces keep it."""

    NONE = ""
    WORTH_IT = "worth it"
    UNSURE = "the draft is unsure"
    NOT_WORTH_IT = "drafting does not pay"
    BASELINE = "timing the target alone"
    TRIAL = "trying again"
    TOO_UNSURE = "too unsure to pay"
    RIVAL = "another draft promises more"
    RESTING = "resting: it did not pay"
    WORTH_A_TRY = "worth a try"
    TOO_DEAR = "too dear to try"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of tokens that may follow the pending token; mostly a chain.

    parents[i] is the token that token i follows, an earlier one, or -1 for the pending token; None: each follows the
    one before. Siblings are different tokens, tried in their order. q[i] is the distribution that token i was really
    drawn from, given its earlier siblings; None: tokens chosen deterministically. `source` names the drafter.
    `row_observer` is shown the rows of the pass that verifies the draft, before they are judged. `meanwhile` is called
    once that pass has begun; on a GPU, it runs beside it. It is ignored in shared passes and in drafts from plugins.
    """

    tokens: tuple[int, ...] = ()
    q: tuple[Categorical, ...] | None = None
    source: str = ""
    parents: tuple[int, ...] | None = None
    row_observer: Callable[[Rows], None] | None = None
    meanwhile: Callable[[], None] | None = None

    def children(self, node: int) -> Sequence[int]:
        """The tokens that may follow one, in the order in which they are tried; -1 is the pending token."""
        if self.parents is None:
            return (node + 1,) if node + 1 < len(self.tokens) else ()
        return [child for child, parent in enumerate(self.parents) if parent == node]


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's own natural logarithms of probabilities, before temperature and cuts: a token's, and those of the
    likeliest tokens at its position by id, the likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification: the draft tokens on `path` are accepted, then `token` follows. p: the target's
    probability of each of these; q: the draft's probability of the accepted ones. Both are empty in greedy decoding.
    """

    path: tuple[int, ...]
    token: int
    origin: Origin
    p: tuple[float, ...] = ()
    q: tuple[float, ...] = ()
    distance: float | None = None
    """For a lossy rule: the total variation between its tokens' distributions and p, summed; None: exact."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of all its tokens, if requested."""

    @property
    def accepted(self) -> int:
        """How many draft tokens are accepted."""
        return len(self.path)


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer. `text` is what can be shown with it (bytes of a split character wait for the rest).

    p, q: its probability as the target and the draft sample; None in greedy decoding. logprobs: if requested; a forced
    token has the probability 1.
    """

    id: int
    text: str
    origin: Origin
    p: float | None = None
    q: float | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """A model has read `tokens` tokens of the prompt. Times are seconds; `at` counts from the start of the run."""

    model: Literal["target", "draft"]
    tokens: int
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class Step:
    """One round of draft and verify. rejected_text: of the drafted tokens that weren't accepted. Step 0 takes its token
    from the prefill, so it has no draft and costs no verification.
    """

    index: int
    tokens: tuple[Token, ...]
    drafted: tuple[int, ...]
    accepted: int
    rejected_text: tuple[str, ...]
    source: str
    draft_s: float
    verify_s: float
    sample_s: float
    at: float
    why: str = ""
    """Why the draft has this length: a LengthReason, or other words in an older trace."""
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] | None = None
    """If the draft is a tree: what each token follows (as in `Draft`), and which tokens were accepted."""
    distance: float | None = None
    unread: int = 0
    """Tokens before the pending one that this pass read too, because they had been forced."""
    free: int = 0
    """Tokens before the forced ones that would have been forced without a draft."""

    @property
    def forced(self) -> int:
        """How many of the tokens were forced; they come last."""
        return sum(token.origin == "forced" for token in self.tokens)

    @property
    def all_parents(self) -> Sequence[int]:
        """What each draft token follows, as in `Draft.parents`, also for a chain."""
        return range(-1, len(self.drafted) - 1) if self.parents is None else self.parents

    @property
    def accepted_path(self) -> Sequence[int]:
        """The indexes of the accepted draft tokens, also for a chain."""
        return range(self.accepted) if self.path is None else self.path


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a run. `tail` is text that was held back as the possible start of a stop string."""

    reason: FinishReason
    tail: str
    notes: tuple[str, ...]
    at: float


Event: TypeAlias = Prefill | Step | Done


class Proposer(Protocol):
    """What a program's own drafter needs at least."""

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        """Up to `budget` tokens to follow `context` (prompt and answer so far; its last token is the pending one)."""


class Drafter(Proposer, Protocol):
    """Proposes tokens. Any exception it raises ends speculation, never the answer."""

    name: str

    def start(self, prompt: Sequence[int]) -> int:
        """Forget everything and read the prompt. Returns how many tokens a model had to decode."""

    def observe(self, step: Step) -> None:
        """Rewind to what was committed, and learn from it. Called for every step but the first, even before `start`."""


class Target(Protocol):
    """The model whose output is wanted."""

    n_ctx: int
    n_vocab: int
    max_draft: int
    """The most draft tokens that one pass can verify."""
    max_branches: int
    """The most branches of a draft tree; 0: `Draft.parents` must be None."""
    reused: int
    """Tokens of the prompt that `prefill` found in its cache."""

    @property
    def length(self) -> int:
        """Tokens of the text that it has read, according to its cache."""

    def prefill(self, prompt: Sequence[int]) -> Logits:
        """Read the prompt and forget everything else. Returns one row, for the token after it."""

    def verify(self, pending: int, draft: Draft) -> Rows:
        """ONE forward pass over the pending token and the draft. Returns 1 + len(draft.tokens) rows."""

    def commit(self, verdict: Verdict, unread: Sequence[int] = ()) -> None:
        """Keep the pending token and the accepted part of the draft, drop the rest. unread: the tokens that follow
        before the next pending token; the next pass reads them.
        """


AcceptRule: TypeAlias = Callable[[Draft, Rows, StandardSampler, np.random.Generator], Verdict]


MIN_FIRST_CONFIDENCE = 0.5
"""The confidence that a drafter needs in its first token while a later drafter could still be asked."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may be added to a tree. sibling_index: how many of its siblings are drafted already.
    path_probability: that the target tests it, because its ancestors are accepted and its earlier siblings aren't.
    """

    sibling_index: int
    path_probability: float


class LengthPolicy:
    """How many tokens to draft. It may look at the draft model's probabilities, never at the target's of the same step;
    and it is asked before a token is drawn: to drop one for what it turned out to be would bias the output. The base
    class drafts as long as there is room, and takes the confidence as the probability of acceptance.
    """

    why: LengthReason = LengthReason.NONE
    """Why the last draft had its length."""
    uses_confidence: bool = True
    """Whether `should_draft` needs the draft's confidence, which may cost a softmax a token."""
    extends: bool = False
    """Whether to look for a known continuation and call `extend`; looking takes microseconds."""
    least_first: float = 0.0
    """The least confidence in a first token, where a later drafter could be asked instead."""
    rival_gain: float = 0.0
    """Seconds that the draft of a later drafter is expected to save."""

    def begin(self, unread: int, read_apart: bool = True) -> None:
        """An answer begins. unread: tokens of its prompt that the drafter has to read. read_apart: whether it does so
        before the clock of its first draft.
        """

    def limit(self, room: int) -> int:
        """The most tokens to draft in the coming step. room: how many may still follow the pending one in the answer
        and the context; a chain has no use for more.
        """
        return room

    def turn(self, place: int, last: bool, budget: int) -> tuple[LengthPolicy, int]:
        """Drafter number `place` of several is next, perhaps the last: the policy to ask, and the most to draft."""
        self.least_first = 0.0 if last else MIN_FIRST_CONFIDENCE
        return self, budget

    def expected_gain(self, room: int) -> float:
        """Seconds that a draft is expected to save now; 0 where that is not known."""
        return 0.0

    def should_read(self, drafted: int, path_probability: float | None = None) -> bool:
        """Whether to pay a pass of the draft model for what follows the last token, or a token of this probability."""
        return True

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        """Whether to add a token to `drafted`. confidence: the draft's highest probability. candidate: in a tree."""
        return drafted > 0 or confidence >= self.least_first

    def choose(self, confidences: Sequence[float]) -> int:
        """How many tokens of a draft to send of which all confidences are known."""
        stops = (i for i, confidence in enumerate(confidences) if not self.should_draft(i, confidence))
        return next(stops, len(confidences))

    def should_read_ahead(self, drafted: int, ahead: int, confidence: float | None) -> bool:
        """Whether the draft model should read one more token while the target verifies a draft of `drafted` tokens. It
        has read `ahead` already, assuming that the whole draft is accepted. confidence: in the token to read; None for
        the draft's own last token.
        """
        return ahead <= drafted // 2 and (confidence is None or confidence >= MIN_FIRST_CONFIDENCE)

    def observe_saved(self, passes: int, tokens: int) -> None:
        """How many passes the draft in hand didn't need, and how many tokens its first pass didn't read, because the
        model had read ahead.
        """

    def extend(self, drafted: int, confidences: Sequence[float]) -> int:
        """How many tokens of a known continuation to append to a draft of `drafted` tokens; 0: the draft model drafts
        on. confidences: in each of its tokens, if those before it are accepted.
        """
        return 0

    def rate(self, sibling_index: int, confidence: float) -> float:
        """The probability that the target accepts a token, given that its ancestors are accepted and its earlier
        siblings rejected. confidence: the draft's own estimate of that.
        """
        return confidence

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        """Learn how sure the draft would have been at a position without one, and how often right (0 to 1)."""

    def observe(self, step: Step, own_time: bool = True) -> None:
        """Learn from a finished step. own_time: whether this drafter spent the draft time of a step without a draft."""

    def observe_others(self, steps: int, tokens: Sequence[int]) -> None:
        """Learn of steps, with these tokens, in which this drafter wasn't asked or another one drafted."""


CATCH_UP_ROWS = 24
"""Rows that a draft model can be asked for in one pass: positions at which it compares itself when it catches up."""


class DraftModel(Protocol):
    """What a drafter needs from a model's context; `llama.context.LlamaContext` is one."""

    n_ctx: int
    """How many tokens the cache has room for."""
    n_vocab: int
    max_rows: int
    """The most rows of logits that one call may ask for."""
    rewinds: bool
    """Whether the last tokens can be dropped at any time; otherwise only back to where a draft began."""

    @property
    def length(self) -> int:
        """How many tokens of the text it has read."""

    def begin(self, text: Sequence[int]) -> int:
        """Forget everything except what can be kept for `text`; returns how many of its tokens are kept."""

    def unread(self, text: Sequence[int]) -> int:
        """How many tokens of `text` would be left to read after `begin`, its last one included."""

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """Make room for `news` and then `more` tokens; returns the part of `news` left to read. Raises ValueError if
        they don't fit.
        """

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        """Append tokens to the cache; returns one row, after the last, or one after each."""

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Append nodes to a tree at the end of the cache, in one pass of at most max_rows; returns a row for each.

        parents: for each, the number of the node that it follows, counted from the tree's start; -1: the cache's end.
        """

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: keep the nodes on this path, drop the others."""

    def begin_draft(self) -> None:
        """Begin a draft: what is read next belongs to it until `end_draft`, or `keep` for a tree."""

    def end_draft(self, length: int) -> None:
        """End the draft: drop everything from position `length` on."""

    def rewind(self, length: int) -> None:
        """Drop everything from position `length` on."""


MAX_SNAPSHOTS = 8
"""The longest draft for which llama.cpp keeps a recurrent state at each token; each costs a whole state. Its graph has
no room for many: it aborts the process from 10 on for a Nemotron-H of 42 layers, from 22 on for an LFM2."""
