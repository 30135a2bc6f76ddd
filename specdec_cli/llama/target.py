"""The target model: one forward pass verifies the pending token and the whole draft."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.types import Draft, Logits, Rows, Verdict
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.passes import N_BATCH


class LlamaTarget:
    """The `Target` of `decoding`, on one llama.cpp context.

    The cache always holds the text in order. If an accepted branch left gaps between its cells, the next tokens would
    fill them, and the same numbers, added in another order, would round differently. So only the part of the branch
    that directly follows the text is kept; the rest, usually a token or two, is read again in the next pass. agreement:
    read drafts, which must be chains, in passes that agree bit for bit. most: tokens of a draft, if the context may
    take longer ones.
    """

    def __init__(self, context: LlamaContext, agreement: Agreement | None = None, most: int = N_BATCH) -> None:
        self._context, self._agreement = context, agreement
        self.reused = self._verified = 0
        self._again: tuple[int, ...] = ()
        """The end of the text, which the next pass must read again."""
        self._tree: tuple[Draft, list[int]] | None = None
        """What the last pass verified, if it was a tree, and the order of its tokens in the cache."""
        self.n_ctx = context.n_ctx - (agreement.padding(1) if agreement else 0)
        self.n_vocab = context.n_vocab
        self.max_draft = min(context.max_rows - 1, most)
        self.max_branches = 0 if agreement else context.max_branches

    @property
    def length(self) -> int:
        return self._context.cache.length + len(self._again)

    def prefill(self, prompt: Sequence[int]) -> Logits:
        self.reused = self._context.begin(prompt)
        self._tree, self._again = None, ()
        logits = self._context.decode(prompt[self.reused :])
        self._verified = len(prompt)
        return logits

    def verify(self, pending: int, draft: Draft) -> Rows:
        if self._agreement is None and len(self._again) + 1 + len(draft.tokens) > N_BATCH:
            self._context.decode(self._again)
            self._again = ()
        if draft.parents is not None:
            return self._grow(pending, draft)
        self._tree = None
        unread, self._again = self._again, ()
        if draft.tokens:
            self._context.begin_draft()
        self._verified = self._context.length + len(unread) + 1
        tokens = (*unread, pending, *draft.tokens)
        if self._agreement is not None:
            rows = _LazyRows(self._context, tokens, self._agreement, len(unread))
            rows[0]  # it is always used
            return rows
        return self._context.decode(tokens, all_rows=True, unread=len(unread), meanwhile=draft.meanwhile)

    def commit(self, verdict: Verdict, unread: Sequence[int] = ()) -> None:
        if self._tree is None:
            self._context.end_draft(self._verified + verdict.accepted)
        else:
            draft, order = self._tree
            steps = enumerate(zip(verdict.path, order, strict=False))
            in_order = next((i for i, (node, other) in steps if node != other), len(verdict.path))
            first, rest = len(self._again) + 1, verdict.path[in_order:]
            self._context.keep(range(first + in_order), [first + order.index(node) for node in rest])
            self._again = tuple(draft.tokens[node] for node in rest)
        self._again += tuple(unread)

    def _grow(self, pending: int, draft: Draft) -> Rows:
        """Verify a tree, its likeliest branch first, after reading the tokens that the cache lacks."""
        order = _depth_first(draft)
        first = len(self._again)  # the index of the pending token in the pass
        index = {-1: first, **{node: first + 1 + i for i, node in enumerate(order)}}
        parents = draft.parents or ()
        tokens = (*self._again, pending, *(draft.tokens[node] for node in order))
        above = (*range(-1, first), *(index[parents[node]] for node in order))
        rows = self._context.grow(tokens, above, unread=first)
        self._tree = draft, order
        if order == sorted(order):
            return rows
        return [rows[index[node] - first] for node in range(-1, len(order))]


def _depth_first(draft: Draft) -> list[int]:
    """A draft's tokens, each followed by its children, earlier siblings first."""
    order: list[int] = []
    left = [-1]
    while left:
        order.append(left.pop())
        left += [*draft.children(order[-1])][::-1]
    return order[1:]


class _LazyRows:
    """For `--bitwise`: rows from passes that agree bit for bit. Each pass runs when its first row is used, so nothing
    after a rejected token is read. unread: how many of the first tokens have rows that aren't counted.
    """

    def __init__(self, context: LlamaContext, tokens: Sequence[int], agreement: Agreement, unread: int) -> None:
        self._context, self._left, self._agreement = context, list(tokens), agreement
        self._unread = unread
        self._sizes = agreement.sizes(len(tokens))
        self._rows: list[Logits] = []

    def __getitem__(self, number: int) -> Logits:
        context = self._context
        while number + self._unread >= len(self._rows):
            size = self._sizes.pop(0)
            tokens, padding = self._left[:size], self._agreement.padding(size)
            rows = context.decode([*tokens, *tokens[-1:] * padding], all_rows=True)
            self._rows += [row.copy() for row in rows[:size]]  # the next pass overwrites them
            del self._left[:size]
            context.rewind(context.length - padding)
        return self._rows[number + self._unread]
