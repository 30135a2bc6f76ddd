"""The one loop: draft, verify, accept, commit. Everything else consumes its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.guard import Speculation
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
    Sampler,
    Step,
    Target,
    Token,
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
    sampler: Sampler,
    rng: np.random.Generator,
    text: TextStream,
    ending: Ending,
) -> Iterator[Event]:
    """Decode an answer to `prompt`, speculating with `drafter`; the baseline is a drafter that proposes nothing.

    prompt: at least one token id, fewer than the target's context. Yields a Prefill per model, a Step per
    forward pass of the target (step 0 reads the prompt's), and one Done, also when interrupted.
    A drafter that raises is dropped and the answer goes on without it; Done.notes says why.
    """
    context = list(prompt)
    sampler.watch(context)
    speculation = Speculation(drafter, policy, target.n_vocab, prompt)
    draft, draft_s, verify_s, index, why = NO_DRAFT, 0.0, 0.0, 0, ""
    reason: FinishReason | None = None
    started = perf_counter()
    try:
        logits = target.prefill(prompt)
        yield Prefill("target", len(prompt), perf_counter() - started, perf_counter() - started)
        while True:
            before = perf_counter()
            verdict = accept(draft, logits, sampler, rng)
            sample_s = perf_counter() - before

            tokens, reason = _commit(draft, verdict, context, text, ending, len(context) - len(prompt))
            step = Step(
                index=index,
                tokens=tokens,
                drafted=draft.tokens,
                accepted=min(verdict.accepted, len(tokens)),
                rejected_text=text.render(draft.tokens[verdict.accepted :]),
                source=draft.source,
                draft_s=draft_s,
                verify_s=verify_s,
                sample_s=sample_s,
                at=perf_counter() - started,
                why=why,
            )
            yield step
            reason = reason or _stopped(ending, len(context) > target.n_ctx)
            if reason:
                break

            before = perf_counter()
            target.commit(verdict)
            commit_s = perf_counter() - before
            before = perf_counter()
            if index > 0:
                speculation.observe(step)
            room = min(ending.max_tokens - len(context) + len(prompt) - 1, target.n_ctx - len(context))
            budget = min(speculation.budget(room), target.max_draft)
            if budget and (read := speculation.start()):
                now = perf_counter()
                yield Prefill("draft", read, now - before, now - started)
                before = perf_counter()
            draft = speculation.propose(context, budget)
            why = speculation.why
            after = perf_counter()
            logits = target.verify(context[-1], draft)
            draft_s, verify_s = after - before, commit_s + perf_counter() - after
            index += 1
    except Interrupted:
        reason = "interrupted"
    notes = (speculation.note,) if speculation.note else ()
    yield Done(reason or "interrupted", text.flush(), notes, perf_counter() - started)


def _stopped(ending: Ending, full: bool) -> FinishReason | None:
    """What, outside the answer itself, ends it."""
    return "interrupted" if ending.interrupted() else "context" if full else None


def _commit(
    draft: Draft, verdict: Verdict, context: list[int], text: TextStream, ending: Ending, emitted: int
) -> tuple[tuple[Token, ...], FinishReason | None]:
    """Append what the verdict lets stand to the context, up to whatever ends the answer."""
    tokens: list[Token] = []
    for i in range(verdict.accepted + 1):
        drafted = i < verdict.accepted
        token = draft.tokens[i] if drafted else verdict.token
        origin: Origin = "accepted" if drafted else verdict.kind
        p = verdict.p[i] if verdict.p else None
        q = verdict.q[i] if i < len(verdict.q) else None
        context.append(token)
        tokens.append(Token(token, text.push(token), origin, p, q))
        if ending.is_end(token):
            return tuple(tokens), "stop"
        if text.stopped:
            return tuple(tokens), "stop_string"
        if emitted + len(tokens) >= ending.max_tokens:
            return tuple(tokens), "length"
    return tuple(tokens), None
