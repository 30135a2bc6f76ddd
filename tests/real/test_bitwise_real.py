"""`--bitwise` on real models: identical without exception, with short prompts and long ones, one thread and two."""

from dataclasses import replace

import pytest

from .test_identity import PROMPTS, every_way, opened, transcript

LONG = PROMPTS[1] * 12
"""More than 256 tokens: beyond, two threads read a single token in another way than several."""


@pytest.mark.parametrize("threads", [1, 2])
def test_smollm(smol, threads):
    ways = [*every_way(["model", "ngram"], (1, 4, 8, "auto")), {"drafter": "ngram+model", "draft_tokens": "auto"}]
    identical(smol, smol, (PROMPTS[0], LONG), ways, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_prompt_of_a_thousand_tokens(smol, threads):
    ways = [{"drafter": "model", "draft_tokens": 8}, {"drafter": "ngram", "draft_tokens": "auto"}]
    identical(smol, smol, (LONG * 3,), ways, threads)


def test_smollm_sampled(smol):
    ways = [{**way, "accept": rule} for rule in ("coupled", "match") for way in every_way(["model"], (4, "auto"))]
    identical(smol, smol, PROMPTS[:1], ways, 2, temperature=0.8, accept="coupled")


def test_the_small_qwen_with_ngram(qwen_small):
    """Its passes agree up to three tokens only: longer drafts are read in pieces."""
    identical(qwen_small, None, (LONG,), every_way(["ngram"], (2, 8, "auto")), 1)


def test_the_real_pair(qwen, qwen_small):
    identical(qwen, qwen_small, PROMPTS[:1], every_way(["model"], (2, 8, "auto")), 1)


def identical(target, draft, texts, ways, threads, **changes):
    with opened(target, draft, texts, ways, threads, bitwise=True, **changes) as (session, prompts):
        for seed, prompt in enumerate(prompts):
            for way in ways:
                settings = replace(session.settings, **way)
                own = transcript(session, prompt, seed, settings.alone())
                mine = transcript(session, prompt, seed, settings)
                assert mine.tokens == own.tokens, (way, threads, str(session.costs.agreement))
        assert session.costs.agreement.widest > session.costs.agreement.reference
