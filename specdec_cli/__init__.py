"""specdec: exact speculative decoding for local GGUF models. docs/python-api.md shows how to use it from Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_cli.api import check, compare, load, load_async, pull, tune
    from specdec_cli.constraints.grammar import Grammar
    from specdec_cli.decoding.categorical import Categorical
    from specdec_cli.decoding.errors import DownloadError, IncompatiblePair, SpecdecError, UsageError
    from specdec_cli.decoding.metrics import Metrics
    from specdec_cli.decoding.types import (
        AcceptRule,
        Done,
        Draft,
        Drafter,
        Event,
        LengthPolicy,
        Prefill,
        Proposer,
        Step,
        Token,
        TokenLogprobs,
        Verdict,
    )
    from specdec_cli.draft_length import DraftForm
    from specdec_cli.drafters.drafter_context import DrafterContext
    from specdec_cli.engine.async_engine import AsyncEngine
    from specdec_cli.engine.conversation import Conversation
    from specdec_cli.engine.engine import Engine
    from specdec_cli.engine.generation_result import GenerationResult
    from specdec_cli.engine.session import Generation, Session
    from specdec_cli.measure.compare import ComparisonResult
    from specdec_cli.measure.tune import MeasuredTuning
    from specdec_cli.pairs.pair_check import PairCheck
    from specdec_cli.pairs.pair_download import DownloadResult
    from specdec_cli.settings.options import SamplingParams, SpeculativeConfig

__version__ = "0.1.0"

_MODULES = {
    "api": ("check", "compare", "load", "load_async", "pull", "tune"),
    "constraints.grammar": ("Grammar",),
    "decoding.categorical": ("Categorical",),
    "decoding.errors": ("DownloadError", "IncompatiblePair", "SpecdecError", "UsageError"),
    "decoding.metrics": ("Metrics",),
    "decoding.types": (
        *("AcceptRule", "Done", "Draft", "Drafter", "Event", "LengthPolicy", "Prefill", "Proposer", "Step"),
        *("Token", "TokenLogprobs", "Verdict"),
    ),
    "draft_length": ("DraftForm",),
    "drafters.drafter_context": ("DrafterContext",),
    "engine.async_engine": ("AsyncEngine",),
    "engine.conversation": ("Conversation",),
    "engine.engine": ("Engine",),
    "engine.generation_result": ("GenerationResult",),
    "settings.options": ("SamplingParams", "SpeculativeConfig"),
    "engine.session": ("Generation", "Session"),
    "measure.compare": ("ComparisonResult",),
    "measure.tune": ("MeasuredTuning",),
    "pairs.pair_check": ("PairCheck",),
    "pairs.pair_download": ("DownloadResult",),
}

__all__ = [
    "AcceptRule",
    "AsyncEngine",
    "Categorical",
    "ComparisonResult",
    "Conversation",
    "Done",
    "DownloadError",
    "DownloadResult",
    "Draft",
    "DraftForm",
    "Drafter",
    "DrafterContext",
    "Engine",
    "Event",
    "Generation",
    "GenerationResult",
    "Grammar",
    "IncompatiblePair",
    "LengthPolicy",
    "MeasuredTuning",
    "Metrics",
    "PairCheck",
    "Prefill",
    "Proposer",
    "SamplingParams",
    "Session",
    "SpecdecError",
    "SpeculativeConfig",
    "Step",
    "Token",
    "TokenLogprobs",
    "UsageError",
    "Verdict",
    "check",
    "compare",
    "load",
    "load_async",
    "pull",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `specdec --help` doesn't wait for numpy and llama.cpp."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"specdec_cli.{module}"), name)
    raise AttributeError(f"module 'specdec_cli' has no attribute {name!r}")
