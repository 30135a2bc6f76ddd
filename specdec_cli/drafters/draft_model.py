"""A small model drafts for the large one, as a chain or a tree of tokens. No token is decoded twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from specdec_cli.decoding.sampling import Row, StandardSampler, confidence
from specdec_cli.decoding.types import Draft, DraftModel, LengthPolicy, Logits, Step
from specdec_cli.drafters.drafter_context import DrafterContext, Guide
from specdec_cli.drafters.read_ahead import ReadAhead
from specdec_cli.drafters.translated import TranslatedDrafter
from specdec_cli.drafters.tree import Tree


class ModelDrafter:
    """Drafts with a draft model.

    n_vocab: ids shared by both models; padding of the draft's vocabulary beyond it is never proposed.
    draws:   True: draw from the draft's distribution and report it as q, of which `rejection` accepts most;
             False: propose the most likely token, of which `match` accepts most.
    width:   how many branches a draft may have; 1 is a chain.
    guide:   what a chain goes on with where that promises more than the draft model.
    """

    name = "model"
    needs_model = True
    needs = "a small model with the target's tokenizer (-md)"
    helps = "texts where it often agrees, if verifying several tokens costs little more than generating one"
    token_s = 0.0  # measured

    @classmethod
    def create(cls, context: DrafterContext) -> ModelDrafter | TranslatedDrafter:
        if context.model is None:
            raise ValueError("this drafter needs a draft model")
        if context.translation is not None:
            return TranslatedDrafter(context.model, context.translation, context.sampler, context.draws, context.rng)
        return cls(
            context.model, context.n_shared, context.sampler, context.draws, context.rng, context.width, context.guide
        )

    def __init__(
        self,
        model: DraftModel,
        n_vocab: int,
        sampler: StandardSampler,
        draws: bool,
        rng: np.random.Generator,
        width: int = 1,
        guide: Guide | None = None,
    ) -> None:
        self._model = model
        self._n_vocab = min(n_vocab, model.n_vocab)
        self._sampler = sampler
        self._draws = draws and not sampler.greedy
        self._rng = rng
        self._width = min(width, model.max_rows)
        self._guide = guide if self._width == 1 else None
        self._tree: Tree
        self._proposed_at, self._drafting = 0, False
        self._p: deque[float | None] = deque(maxlen=model.max_rows)
        """The target's probabilities of the last tokens emitted, if known."""

    def unread(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt have to be read."""
        return self._model.unread(prompt)

    def start(self, prompt: Sequence[int]) -> int:
        """Read what the cache lacks of the prompt, except its last token, which `propose` reads. Raises if it doesn't
        fit.
        """
        kept, self._drafting = self._model.begin(prompt), False
        self._require_known(prompt)
        if news := self._model.make_room(prompt[kept:-1], 1):
            self._model.decode(news)
        return len(news)

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        row = self._begin(context, budget, policy)
        self._tree = tree = Tree(self._sampler, self._rng, self._draws, self._width, policy)
        sequel: list[int] = []

        def read(nodes: Sequence[int]) -> Logits | None:
            if self._guide is not None and policy.extends:
                tokens, sure = self._guide.sequel(context, tree.tokens, budget - len(tree.tokens))
                sequel.extend(tokens[: policy.extend(len(tree.tokens), sure)])
            return None if sequel else self._read(nodes)

        tree.grow(row, budget, read)
        draft = tree.draft(self.name, sequel)
        if isinstance(model := self._model, ReadAhead):
            policy.observe_saved(*model.take_saved())
            lacks_last = model.length + 1 == len(context) + len(draft.tokens)
            if lacks_last and draft.parents is None:
                return replace(draft, meanwhile=partial(self._read_ahead, model, draft.tokens, policy))
        return draft

    def _read_ahead(self, model: ReadAhead, tokens: Sequence[int], policy: LengthPolicy) -> None:
        """While the target verifies a draft: read on, as if it were accepted as a whole."""
        text, sure = list(tokens), None
        sampler, number = self._sampler, 0
        with suppress(Exception):  # the model or the policy failed: the next draft fails, too, and says so
            while number <= len(tokens) and model.room and policy.should_read_ahead(len(tokens), number, sure):
                row = model.row_ahead(number, text[-1])[: self._n_vocab]
                q = sampler.categorical(row, text) if self._draws else None
                row = sampler.prepared(row, text)
                text.append(sampler.draw(q, len(text), self._rng) if q and sampler.coupled else int(row.argmax()))
                sure, number = float(q.probs.max()) if q else confidence(row), number + 1

    def _begin(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Row:
        """Read what the cache lacks: the pending token, and the last draft token if all were accepted. Returns the row
        after them.
        """
        model = self._model
        news = context[model.length :]
        self._require_known(news)
        news = model.make_room(news, budget - 1)
        row = self._catch_up(news, policy) if len(news) > 2 else model.decode(news)[0, : self._n_vocab]
        model.begin_draft()
        self._proposed_at, self._drafting = len(context), True
        return row

    def observe(self, step: Step) -> None:
        """Drop the rejected tokens from the cache; the accepted ones are already right."""
        self._p.extend([token.p for token in step.tokens])
        if not self._drafting:
            return
        self._drafting = False
        if self._width > 1 and step.drafted:
            self._model.keep(self._tree.kept(step))
        else:
            self._model.end_draft(self._proposed_at + step.accepted)

    def _read(self, nodes: Sequence[int]) -> Logits:
        """The rows after tokens of the tree, in one pass."""
        model, tree = self._model, self._tree
        tokens = [tree.tokens[node] for node in nodes]
        if self._width == 1:
            return model.decode(tokens)[:, : self._n_vocab]
        parents = [tree.parents[node] for node in nodes]
        above = [-1 if parent < 0 else tree.numbers[parent] for parent in parents]
        return model.grow(tokens, above)[:, : self._n_vocab]

    def _catch_up(self, news: Sequence[int], policy: LengthPolicy) -> Row:
        """Read what was emitted while nothing was drafted, and report to the policy how drafts would have done.

        Returns the row after the last token.
        """
        model, n_vocab = self._model, self._n_vocab
        if model.max_rows < 2 or self._sampler.needs_history:  # the history at earlier positions isn't kept
            return model.decode(news)[0, :n_vocab]
        if len(news) > model.max_rows:
            model.decode(news[: -model.max_rows])
            news = news[-model.max_rows :]
        rows = model.decode(news, all_rows=True)[:, :n_vocab]
        known = list(self._p)[-(len(news) - 1) :]
        skipped = len(news) - 1 - len(known)  # the prompt's last token, and the first of the answer
        places = zip(rows[skipped:], news[skipped + 1 :], known, strict=False)
        for back, (row, token, p) in enumerate(places, -len(known)):
            policy.observe_counterfactual(*self._in_hindsight(row, token, p, back))
        last: Row = rows[-1]
        return last

    def _in_hindsight(self, row: Row, token: int, p: float | None, back: int) -> tuple[float, float]:
        """The draft's confidence at the position of `token`, and how likely its own token would have been accepted.

        back: the position, counted from the end of the text: -1 is the last token.
        """
        if not self._draws or p is None:
            return confidence(row), float(self._sampler.argmax(row) == token)
        q = self._sampler.categorical(row)
        if self._sampler.coupled:
            return float(q.probs.max()), float(self._sampler.draw(q, back, self._rng) == token)
        return float(q.probs.max()), min(1.0, q.prob(token) / p) if p > 0 else 1.0

    def _require_known(self, tokens: Sequence[int]) -> None:
        if max(tokens) >= self._model.n_vocab:
            raise ValueError(f"the target emitted token {max(tokens)}, which the draft model does not have")


class SelfDrafter(ModelDrafter):
    """The target drafts for itself: the draft model is a copy of it with fewer layers or bits (Zhang et al., arXiv
    2309.08168). It is a separate file, because llama.cpp can't skip layers of a loaded model.
    """

    name = "self"
    needs = "a pruned or low-bit copy of the target (specdec draft)"
    helps = "targets without a small relative, if most tokens need fewer layers or bits"
