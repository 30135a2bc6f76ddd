"""Finds where an answer differs from the target's own, and proves whether that is rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdec_cli.decoding import rules
from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.divergence import Choice, Divergence, Transcript, explain, first_difference
from specdec_cli.engine.config import Settings
from specdec_cli.engine.contexts import ModelContext
from specdec_cli.llama.target import LlamaTarget


def divergence(
    target: ModelContext,
    prompt: Sequence[int],
    own: Transcript,
    mine: Transcript,
    seed: int,
    settings: Settings,
    agreement: Agreement | None = None,
) -> Divergence | None:
    """Where an answer first differs from the target's own, and whether that is rounding or a bug; None if they agree.

    own, mine: the target's own answer and the one to check, with the same seed. agreement: that of a --bitwise answer.
    Use it for greedy answers and for rules that reproduce the target's text. It repeats the passes of both answers up
    to the difference.
    """
    position = first_difference(mine.tokens, own.tokens)
    if position is None:
        return None
    text = [*prompt, *own.tokens[:position]]
    sampler = rules.sampler_of(settings.accept, settings, seed, settings.constraint(target.model))
    sampler.watch(text, len(prompt))
    choice = Choice(sampler, position, len(text), seed)
    context = target.opened
    threads, watch = context.threads, context.passes.on_pass

    def again(transcript: Transcript) -> LlamaTarget:
        """A target that uses the same number of threads as the answer did, at each position."""

        def change(_tokens: int, _seconds: float) -> None:
            for length, count in transcript.threads[1:]:
                if length == context.length:
                    context.set_threads(count)

        context.passes.on_pass = change
        context.set_threads(transcript.threads[0][1] if transcript.threads else threads)
        return LlamaTarget(context, agreement)

    experts = bool(target.header.setting("expert_count"))
    try:
        difference = explain(prompt, own, mine, position, choice, again, experts)
    finally:
        context.passes.on_pass = watch
        context.set_threads(threads)
    if settings.bitwise and not difference.bug:
        return replace(difference, bug=f"passes that agreed bit for bit when measured differ here: {difference}")
    return difference
