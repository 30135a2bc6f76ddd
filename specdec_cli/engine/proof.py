"""Where an answer differs from the target's own, and the proof that rounding is the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdec_cli.decoding import rules
from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.divergence import Choice, Divergence, Transcript, explain, first_difference
from specdec_cli.engine.contexts import ModelContext
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.settings.config import Settings


def divergence(
    target: ModelContext,
    prompt: Sequence[int],
    own: Transcript,
    mine: Transcript,
    seed: int,
    settings: Settings,
    agreement: Agreement | None = None,
    reused: int = 0,
) -> Divergence | None:
    """The first token where an answer differs from the target's own, and whether rounding or a bug is the cause. None
    if the answers are equal.

    own, mine: the target's own answer and the other one, with the same seed. agreement: of a --bitwise answer. reused:
    how many tokens of the prompt were in the cache when both answers began; it must still hold what it held then. It
    works for acceptance rules that reproduce the target's text, and for all rules at temperature 0. It repeats the
    passes of both answers up to that token.
    """
    position = first_difference(mine.tokens, own.tokens)
    if position is None:
        return None
    text = [*prompt, *own.tokens[:position]]
    sampler = rules.sampler_of(settings.accept, settings, seed, settings.constraint(target.model))
    sampler.watch(text, len(prompt))
    choice = Choice(sampler, position, len(text), seed)
    context = target.opened
    threads, watch, reuses = context.threads, context.passes.on_pass, context.reuses

    def again(transcript: Transcript) -> LlamaTarget:
        """A target that starts as the answer did, and changes threads where the answer did."""

        def change(_tokens: int, _seconds: float) -> None:
            for length, count in transcript.threads[1:]:
                if length == context.length:
                    context.set_threads(count)

        context.passes.on_pass = change
        context.set_threads(transcript.threads[0][1] if transcript.threads else threads)
        context.rewind(reused)
        context.reuses = reused > 0
        return LlamaTarget(context, agreement)

    experts = bool(target.header.setting("expert_count"))
    try:
        difference = explain(prompt, own, mine, position, choice, again, experts)
    finally:
        context.passes.on_pass, context.reuses = watch, reuses
        context.set_threads(threads)
    if settings.bitwise and not difference.bug:
        return replace(difference, bug=f"passes that agreed bit for bit when measured differ here: {difference}")
    return difference
