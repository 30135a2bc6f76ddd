"""Records what the draft model would have proposed at every place of the target's answers, for the simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_cli.decoding import rules
from specdec_cli.decoding.accept import residual
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import Row, confidence
from specdec_cli.decoding.types import NO_DRAFT, Verdict
from specdec_cli.engine.config import Settings
from specdec_cli.engine.session import Session
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.measure.simulator import AHEAD, Answer


def record(
    session: Session, prompt: Sequence[int], settings: Settings, seed: int, category: str
) -> tuple[Answer, list[int]]:
    """Let the target alone answer, and ask the draft model at each place. Returns the answer's record and tokens.

    An answer that falls into a loop, as small models' greedy ones do, is recorded up to there. At a temperature with
    `rejection`, the draft's token x is drawn from q so that it agrees with the target's y as often as speculative
    sampling accepts: x = y with probability min(1, q(y) / p(y)), else x comes from max(0, q - p). With `coupled` both
    are drawn with the same noise.
    """
    answers, tokens = record_rules(session, prompt, settings, seed, category, [settings.accept])
    return answers[settings.accept], tokens


def record_rules(
    session: Session, prompt: Sequence[int], settings: Settings, seed: int, category: str, accept: Sequence[str]
) -> tuple[dict[str, Answer], list[int]]:
    """The same for several acceptance rules on one answer, so that they can be compared place by place."""
    places, tokens, length = _Recorder(session, settings, seed, accept).record(list(prompt))
    columns = {rule: tuple(zip(*recorded[:length], strict=True)) or ((), (), ()) for rule, recorded in places.items()}
    return {rule: Answer(category, len(prompt), *each) for rule, each in columns.items()}, tokens


_DRAWING = ("rejection", "coupled")
"""Rules for which the draft's token is drawn from q; for the others it is the most likely one."""
_Place = tuple[float, bool, tuple[float, ...]]
"""One place as `Answer` has it: the draft's confidence, whether its token stands, and how it goes on if not."""


class _Recorder:
    def __init__(self, session: Session, settings: Settings, seed: int, accept: Sequence[str]) -> None:
        draft = session.models.draft
        if draft is None or draft.drafting is None:
            raise RuntimeError("there is no draft model")
        self._draft, self._target = draft.drafting, LlamaTarget(session.models.target.opened)
        self._is_end = session.models.target.model.is_end
        self._n_shared = session.pair.n_shared
        self._max_tokens = settings.max_tokens
        self._rules = accept
        noisy = "coupled" if "coupled" in accept else settings.accept
        self._sampler = rules.sampler_of(noisy, settings.sampling, seed)
        self._target_rng = np.random.default_rng(seed)
        self._draft_rng = np.random.default_rng((seed, 1))

    def record(self, context: list[int]) -> tuple[dict[str, list[_Place]], list[int], int]:
        """Each rule's places, the answer's tokens, and how many places come before a loop."""
        prompt = len(context)
        places: dict[str, list[_Place]] = {rule: [] for rule in self._rules}
        self._sampler.watch(context)
        _, token = self._next(self._target.prefill(context)[0])
        self._draft.rewind(0)
        self._draft.decode(context)
        room = min(self._target.n_ctx, self._draft.n_ctx) - AHEAD
        while len(context) - prompt < self._max_tokens and len(context) < room and not self._is_end(token):
            context.append(token)
            logits = self._target.verify(token, NO_DRAFT)
            self._target.commit(Verdict((), token, "plain"))
            row = self._draft.decode((token,))[0, : self._n_shared].copy()  # going on from a wrong token overwrites it
            p, token = self._next(logits[0])
            for rule, recorded in places.items():
                sure, wrong = self._guess(rule, row, p, token)
                recorded.append((sure, wrong is None, () if wrong is None else self._go_on(rule, wrong)))
        tokens = context[prompt:]
        return places, tokens, before_a_loop([*tokens, token])

    def _next(self, row: Row) -> tuple[Categorical | None, int]:
        """The target's distribution, None if greedy, and its token."""
        if self._sampler.greedy:
            return None, self._sampler.argmax(row)
        p = self._sampler.categorical(row)
        return p, self._sampler.draw(p, 0, self._target_rng)

    def _guess(self, rule: str, row: Row, p: Categorical | None, token: int) -> tuple[float, int | None]:
        """How sure the draft is in a place, and what it proposes there; None: the target's token."""
        sampler, rng = self._sampler, self._draft_rng
        if p is None or rule not in _DRAWING:
            sure, guess = confidence(row), sampler.argmax(row)
        else:
            q = sampler.categorical(row)
            sure = float(q.probs.max())
            if rule == "coupled":
                guess = sampler.draw(q, 0, rng)
            else:
                guess = token if rng.random() * p.prob(token) < q.prob(token) else residual(q, p).draw(rng)
        return sure, None if guess == token else guess

    def _go_on(self, rule: str, token: int) -> tuple[float, ...]:
        draft, sampler = self._draft, self._sampler
        start = draft.length
        draft.begin_draft()
        sure: list[float] = []
        ahead = [token]
        while len(sure) < AHEAD - 1:
            row = draft.decode((ahead[-1],))[0, : self._n_shared]
            if rule in _DRAWING and not sampler.greedy:
                q = sampler.categorical(row, ahead)
                sure.append(float(q.probs.max()))
                noisy = rule == "coupled"
                ahead.append(sampler.draw(q, len(ahead), self._draft_rng) if noisy else q.draw(self._draft_rng))
            else:
                sure.append(confidence(row))
                ahead.append(sampler.argmax(row, ahead))
        draft.end_draft(start)
        return tuple(sure)


def before_a_loop(tokens: Sequence[int]) -> int:
    """How many tokens there are until the same ones (four or more in all) have come three times in a row, less two
    of those times.
    """
    for end in range(12, len(tokens) + 1):
        for period in range(1, end // 3 + 1):
            times = 3 if period > 3 else -(-12 // period)
            piece = tokens[end - period : end]
            if all(tokens[end - (i + 1) * period : end - i * period] == piece for i in range(1, times)):
                return end - (times - 1) * period
    return len(tokens)
