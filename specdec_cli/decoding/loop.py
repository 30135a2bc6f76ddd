"""The one loop: draft, verify, accept, commit. Everything else consumes its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.speculation import Speculation
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import (
    NO_DRAFT,
    AcceptRule,
    Done,
    Draft,
    Drafter,
    Event,
    FinishReason,
    LengthPolicy,
    Origin,
    Prefill,
    Rows,
    Step,
    Target,
    Token,
    TokenLogprobs,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends an answer, besides a stop string and the end of the context."""

    max_tokens: int
    is_end: Callable[[int], bool]
    interrupted: Callable[[], bool] = lambda: False


def generate(
    prompt: Sequence[int],
    target: Target,
    drafter: Drafter,
    policy: LengthPolicy,
    accept: AcceptRule,
    sampler: StandardSampler,
    rng: np.random.Generator,
    text: TextStream,
    ending: Ending,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Event]:
    """Decode an answer to `prompt`: at least one token id, fewer than the target's context. clock: seconds.

    Yields a Prefill per model, a Step per forward pass of the target (step 0 uses the prompt's), and one Done, also
    when interrupted. If the drafter raises, the answer continues without it; Done.notes says why.
    """
    context = list(prompt)
    sampler.follow(context)
    answer = _Answer(context, text, ending, sampler.constraint, rng)
    speculation = Speculation(drafter, policy, target, prompt, ending.interrupted, sampler.constraint)
    draft, why, draft_s, verify_s, index = NO_DRAFT, "", 0.0, 0.0, 0
    started, unread = clock(), tuple[int, ...]()
    try:
        logits: Rows = target.prefill(prompt)
        yield Prefill("target", len(prompt) - target.reused, clock() - started, clock() - started)
        speculation.begin()
        while True:
            before = clock()
            verdict = accept(draft, logits, sampler, rng)
            sample_s = clock() - before
            tokens, free, reason = answer.commit(draft, verdict)
            at, path = clock() - started, verdict.path
            accepted = path[: len(tokens)]  # the answer may have ended before the last of them
            drafted = draft.tokens
            rejected = text.render([token for i, token in enumerate(drafted) if i not in path]) if drafted else ()
            step = Step(
                index=index,
                tokens=tokens,
                drafted=drafted,
                accepted=len(accepted),
                rejected_text=rejected,
                source=draft.source,
                draft_s=draft_s,
                verify_s=verify_s,
                sample_s=sample_s,
                at=at,
                why=why,
                parents=draft.parents,
                path=draft.parents and accepted,
                distance=verdict.distance,
                unread=len(unread),
                free=free,
            )
            yield step
            full = len(context) > target.n_ctx
            if reason := reason or ("interrupted" if ending.interrupted() else "context" if full else None):
                break
            before = clock()
            unread = tuple(token.id for token in tokens[verdict.accepted : -1])
            target.commit(verdict, unread)
            commit_s = clock() - before
            before = clock()
            if index > 0:
                speculation.observe(step)
            cells = target.n_ctx - len(context)
            room = min(ending.max_tokens - len(context) + len(prompt) - 1, cells)
            budget = speculation.budget(room, min(target.max_draft, cells))
            if budget and (read := speculation.start()):
                now = clock()
                yield Prefill("draft", read, now - before, now - started)
                before = clock()
            draft = speculation.propose(context, budget)
            why, after = speculation.why, clock()
            logits = target.verify(context[-1], draft)
            speculation.show_rows(draft, logits)
            draft_s, verify_s = after - before, commit_s + clock() - after
            index += 1
    except Interrupted:
        reason = "interrupted"
    yield Done(reason, text.flush(), speculation.notes, clock() - started)


class _Answer:
    """The growing text. context: the prompt, to which tokens are appended."""

    def __init__(
        self,
        context: list[int],
        text: TextStream,
        ending: Ending,
        constraint: Constraint | None,
        rng: np.random.Generator,
    ) -> None:
        self._context, self._begin = context, len(context)
        self._text, self._ending, self._constraint, self._rng = text, ending, constraint, rng

    def commit(self, draft: Draft, verdict: Verdict) -> tuple[tuple[Token, ...], int, FinishReason | None]:
        """Append the accepted tokens, the one after them, and forced tokens, up to the end of the answer. Returns them;
        how many before the forced ones were the only ones that the grammar allowed; and why the answer ends, if so.
        """
        tokens, free, constraint = list[Token](), 0, self._constraint
        ids = [*(draft.tokens[node] for node in verdict.path), int(verdict.token)]  # a rule may give numpy's integers
        # The first comes from a pass with or without a draft.
        certain = [i > 0 and constraint is not None and constraint.forced(ids[:i]) is not None for i in range(len(ids))]
        for i, token in enumerate(ids):
            origin: Origin = "accepted" if i < verdict.accepted else verdict.origin
            p = verdict.p[i] if verdict.p else None
            q = verdict.q[i] if i < len(verdict.q) else None
            logprobs = (TokenLogprobs(0.0) if certain[i] else verdict.logprobs[i]) if verdict.logprobs else None
            tokens.append(Token(token, self._add(token), origin, p, q, logprobs))
            free += certain[i]
            if reason := self._end(token):
                return tuple(tokens), free, reason
        while constraint is not None and (forced := constraint.forced()) is not None:
            # A forced token needs no logits. It uses up one random number, as a draw does, so that `match` draws the
            # same with and without drafts.
            self._rng.random()
            logprobs = TokenLogprobs(0.0) if verdict.logprobs else None
            tokens.append(Token(forced, self._add(forced), "forced", logprobs=logprobs))
            if reason := self._end(forced):
                return tuple(tokens), free, reason
        return tuple(tokens), free, None

    def _add(self, token: int) -> str:
        self._context.append(token)
        return self._text.push(token)

    def _end(self, token: int) -> FinishReason | None:
        """Why the answer ends with this token, if it does."""
        if self._ending.is_end(token):
            return "stop"
        if self._text.stopped:
            return "stop_string"
        return "length" if len(self._context) - self._begin >= self._ending.max_tokens else None
