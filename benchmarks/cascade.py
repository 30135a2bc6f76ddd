"""Complements the simulator: `ngram+model`, with the real drafters, and a draft model that answers from a recording."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from hindsight import replay_text
from numpy.typing import NDArray

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import CATCH_UP_ROWS
from specdec_cli.draft_length import DraftForm, adaptive_length, cascade_length
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.drafters.cascade import CascadeDrafter
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.measure.simulate import Answer, Run, Tally, Text

_MAX_SURE = 0.9999


class RecordedModel:
    """A greedy draft model that proposes what it proposed when it was recorded, and counts what its passes cost.

    Tokens are renumbered, so that its rows are short: those of the text from 0 on, then one for each wrong proposal.
    """

    n_ctx, max_rows, rewinds = 1 << 30, CATCH_UP_ROWS, True

    def __init__(self, text: Text, answer: Answer, draft: Callable[[float], float]) -> None:
        ids = {token: number for number, token in enumerate(dict.fromkeys((*text.prompt, *text.tokens)))}
        prompt, tokens = (tuple(ids[token] for token in part) for part in (text.prompt, text.tokens))
        self.text = Text(text.category, prompt, tokens)
        self._true, self._answer, self._wrong = (*prompt, *tokens), answer, len(ids)
        self.n_vocab = self._wrong + max(map(len, answer.after_rejection), default=0) + 2
        self._draft, self._seconds = draft, 0.0
        self._cache: list[int] = []
        self._agrees = 0
        """How many tokens of the cache are those of the text."""

    @property
    def length(self) -> int:
        return len(self._cache)

    def begin(self, text: Sequence[int]) -> int:
        self.rewind(0)
        return 0

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        return news

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> NDArray[np.float32]:
        self._seconds += self._draft(len(tokens))
        rows = []
        for token in tokens:
            self._agrees += self._agrees == len(self._cache) and self._true[self._agrees] == token
            self._cache.append(token)
            rows.append(self._row())
        return np.array(rows if all_rows else rows[-1:])

    def begin_draft(self) -> None:
        """What is read next may be dropped again, as anything may."""

    def end_draft(self, length: int) -> None:
        self.rewind(length)

    def spent(self) -> float:
        """The seconds of the passes since this was last called."""
        spent, self._seconds = self._seconds, 0.0
        return spent

    def rewind(self, length: int) -> None:
        del self._cache[length:]
        self._agrees = min(self._agrees, length)

    def _row(self) -> NDArray[np.float32]:
        """Logits: all alike but for the token that was proposed here."""
        place, astray = self._agrees - len(self.text.prompt) - 1, len(self._cache) - self._agrees
        token, sure = self._wrong + astray, 1 / self.n_vocab
        if 0 <= place < len(self._answer.accepted):
            if astray and astray <= len(self._answer.after_rejection[place]):
                sure = self._answer.after_rejection[place][astray - 1]
            elif not astray:
                sure = self._answer.confidence[place]
                token = self._true[self._agrees] if self._answer.accepted[place] else token
        row = np.zeros(self.n_vocab, np.float32)
        sure = min(max(sure, 1 / self.n_vocab), _MAX_SURE)
        row[token] = math.log(sure / (1 - sure) * (self.n_vocab - 1))
        return row


def cascaded(texts: Iterable[tuple[Text, Answer]], costs: Costs, look: Curve) -> float:
    """Tokens per second of `-k auto` with `ngram+model`, once through all texts. look: seconds that `ngram` takes to
    search.
    """
    policies = {}
    for part, form, draft in (("ngram", DraftForm.KNOWN, look), ("model", DraftForm.GROWN, costs.draft)):
        model_costs = CostModel(Costs(costs.verify, draft), form.longest)
        policies[part] = adaptive_length(form, model_costs, Calibration.prior(True), form.budget())
    run = Run(cascade_length(policies), replace(costs, other=0.0), Tally())
    for text, answer in texts:
        model = RecordedModel(text, answer, costs.draft)
        guide, rng = NgramDrafter(), np.random.default_rng(0)
        sampler = StandardSampler(SamplingOptions(temperature=0.0))
        drafter = CascadeDrafter([guide, ModelDrafter(model, model.n_vocab, sampler, False, rng, 1, guide)])
        replay_text(drafter, model.text, run, lambda model=model: look(1) + model.spent())  # type: ignore[misc]
    return run.tally.tokens / run.now
