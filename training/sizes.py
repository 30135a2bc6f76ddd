"""The sizes that the recipe can be run at: shapes of both models, and how much they see."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specdec_cli.make_drafts.training.shape import Shape


@dataclass(frozen=True, slots=True)
class Size:
    """A run of the whole recipe. Token counts are those read in training, with repetition.

    exits:       after how many layers the target learns to stop, taking turns (LayerSkip, arXiv 2404.16710).
    exit_weight: what share of the loss an early exit has in its turn; 0 trains the last layer alone.
    skip:        LayerSkip's layer dropout at the last layer; earlier ones have exponentially less.
    samples:     tokens that the target writes itself for the draft to learn from.
    on_samples:  what share of the draft's reading they are.
    variation:   what share of the draft's loss is total variation at the end; the rest is the forward KL.
    target_share: of a time budget, what the target gets of the training of both.
    """

    vocabulary: int
    tokenizer_megabytes: float
    target: Shape
    draft: Shape
    batch: int
    micro_batch: int
    target_tokens: int
    draft_tokens: int
    samples: int
    sample_batch: int
    sample_length: int = 512
    target_lr: float = 1.5e-3
    draft_lr: float = 3e-3
    exits: tuple[int, ...] = (1, 2, 3, 4)
    exit_weight: float = 0.2
    skip: float = 0.1
    on_samples: float = 0.5
    variation: float = 0.0
    target_share: float = 0.7
    megabytes: float = 400.0
    seed: int = 1


def _shape(layers: int, width: int, heads: int, feed_forward: int, vocabulary: int, context: int) -> Shape:
    return Shape(layers, width, heads, feed_forward, vocabulary, context)


FULL = Size(
    vocabulary=8192,
    tokenizer_megabytes=60,
    target=_shape(8, 512, 8, 1408, 8192, 2048),  # 29.9 M
    draft=_shape(2, 128, 2, 352, 8192, 2048),  # 1.45 M
    batch=64,
    micro_batch=32,
    target_tokens=600_000_000,
    draft_tokens=250_000_000,
    samples=20_000_000,
    sample_batch=2048,
)

SMALL = Size(
    vocabulary=2048,
    tokenizer_megabytes=10,
    target=_shape(4, 128, 2, 352, 2048, 256),  # 1.06 M
    draft=_shape(1, 64, 1, 160, 2048, 256),  # 0.18 M
    batch=16,
    micro_batch=16,
    target_tokens=4_000_000,
    draft_tokens=3_000_000,
    samples=200_000,
    sample_batch=64,
    sample_length=256,
    exits=(1, 2),
    megabytes=40,
)

TINY = Size(
    vocabulary=512,
    tokenizer_megabytes=1,
    target=_shape(4, 64, 2, 160, 512, 128),
    draft=_shape(1, 32, 1, 96, 512, 128),
    batch=8,
    micro_batch=4,
    target_tokens=150_000,
    draft_tokens=100_000,
    samples=8_000,
    sample_batch=16,
    sample_length=64,
    exits=(1, 2),
    megabytes=3,
)

SIZES = {"full": FULL, "small": SMALL, "tiny": TINY}
"""full: a GPU, some 15 minutes of an H100. small: a CPU, half an hour. tiny: everything once, in a minute."""


def with_settings(size: Size, settings: list[str]) -> Size:
    """A size with fields of its own changed: ["target_tokens=1000000", "exit_weight=0"].

    Raises ValueError for a field that is not a number of Size.
    """
    changes: dict[str, float | int] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        before = getattr(size, name, None)
        if not isinstance(before, (int, float)):
            raise ValueError(f"{name} is no number of a size; such are target_tokens, exit_weight, variation")
        changes[name] = type(before)(float(value))
    return replace(size, **changes)  # type: ignore[arg-type]
