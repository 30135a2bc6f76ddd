"""specdec: exact speculative decoding for local GGUF models. docs/python-api.md shows how to use it from Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_cli.constraints.grammar import Grammar
    from specdec_cli.decoding.errors import DownloadError, IncompatiblePair, SpecdecError, UsageError
    from specdec_cli.decoding.metrics import Metrics
    from specdec_cli.decoding.types import Done, Event, Prefill, Step, Token
    from specdec_cli.engine.async_engine import AsyncEngine
    from specdec_cli.engine.engine import Engine
    from specdec_cli.engine.generation import GenerationResult
    from specdec_cli.engine.options import SamplingParams, SpeculativeConfig
    from specdec_cli.pairs.loading import load, load_async

__version__ = "0.1.0"

_MODULES = {
    "constraints.grammar": ("Grammar",),
    "decoding.errors": ("DownloadError", "IncompatiblePair", "SpecdecError", "UsageError"),
    "decoding.metrics": ("Metrics",),
    "decoding.types": ("Done", "Event", "Prefill", "Step", "Token"),
    "engine.options": ("SamplingParams", "SpeculativeConfig"),
    "engine.async_engine": ("AsyncEngine",),
    "engine.engine": ("Engine",),
    "engine.generation": ("GenerationResult",),
    "pairs.loading": ("load", "load_async"),
}

__all__ = [
    "AsyncEngine",
    "Done",
    "DownloadError",
    "Engine",
    "Event",
    "GenerationResult",
    "Grammar",
    "IncompatiblePair",
    "Metrics",
    "Prefill",
    "SamplingParams",
    "SpecdecError",
    "SpeculativeConfig",
    "Step",
    "Token",
    "UsageError",
    "load",
    "load_async",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `specdec --help` doesn't wait for numpy and llama.cpp."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"specdec_cli.{module}"), name)
    raise AttributeError(f"module 'specdec_cli' has no attribute {name!r}")
