"""`load`: loads a pair by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec

from specdec_cli.decoding.options import options_of
from specdec_cli.engine.async_engine import AsyncEngine
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.options import ModelOptions, SamplingParams, SpeculativeConfig, given_in
from specdec_cli.pairs.config_layers import resolve

_Given = ParamSpec("_Given")


def load(
    profile: str | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    draft_small: str | Path | None = None,
    speculative: SpeculativeConfig | None = None,
    sampling: SamplingParams | None = None,
    draft_window: int | None = None,
    ctx: int | None = None,
    threads: int | None = None,
    threads_draft: int | None = None,
    gpu_layers: int | None = None,
    gpu_layers_draft: int | None = None,
    lora: str | Path | Sequence[str | Path] | None = None,
    lora_draft: str | Path | Sequence[str | Path] | None = None,
    device: str | None = None,
    device_draft: str | None = None,
    tensor_split: str | None = None,
    rpc: str | None = None,
    rpc_insecure: bool | None = None,
) -> Engine:
    """Load a profile's pair, or a target and a draft; with neither, the bundled pair.

    Models are named as on the command line: a path, REPO:QUANT, REPO/FILE.gguf or a profile. Options that you don't set
    come from config.yaml, the profile, or the defaults. speculative, sampling: the defaults for calls. ctx: tokens of
    context; by default, as many as the longest prompt and answer so far need. The other arguments are the options of
    `specdec run` with the same names.

    Raises UsageError on invalid values, DownloadError if a model isn't on this machine, IncompatiblePair if the
    tokenizers don't fit, SpecdecError on files that can't be used. Each has a `hint`.
    """
    given = {name: value for name, value in locals().items() if name in options_of(ModelOptions)}
    models = {name: str(path) if isinstance(path, Path) else path for name, path in given.items()}
    settings = resolve(profile, {**models, **given_in(sampling, speculative)})
    variants = [settings, replace(settings, drafter="ngram")] if speculative and speculative.ngram_corpus else []
    return Engine(settings, accept=speculative.accept if speculative else None, variants=variants)


def _in_thread(load: Callable[_Given, Engine]) -> Callable[_Given, Coroutine[None, None, AsyncEngine]]:
    async def load_async(*args: _Given.args, **kwargs: _Given.kwargs) -> AsyncEngine:
        """Load a pair as `load` does, in a thread, for an asyncio program."""
        return AsyncEngine(await asyncio.to_thread(load, *args, **kwargs))

    return load_async


load_async = _in_thread(load)
