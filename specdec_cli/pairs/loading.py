"""`load`: a pair by its names, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdec_cli.engine.config import SamplingParams, Settings, SpeculativeConfig
from specdec_cli.engine.engine import Engine
from specdec_cli.pairs.config_layers import resolve


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
    """Load a pair: a profile's, or the target and draft named; with neither, the bundled one.

    Models are named as on the command line: a path, REPO:QUANT, REPO/FILE.gguf or a profile. What is not given comes
    from the user's config.yaml, the profile, the defaults. speculative, sampling: what answers go by unless a call
    says otherwise. ctx: tokens of context; without it, as many as the longest prompt and answer so far need. The
    other arguments are the options of `specdec run` with the same names.

    Raises UsageError on senseless values, DownloadError on a model that is not on this machine, IncompatiblePair on
    different tokenizers, SpecdecError on files that cannot be used; each has a `hint`.
    """
    paths = {"target": target, "draft": draft, "draft_small": draft_small}
    given: dict[str, object] = {name: str(path) for name, path in paths.items() if path is not None}
    given |= {"draft_window": draft_window, "ctx": ctx, "threads": threads, "threads_draft": threads_draft}
    given |= {"gpu_layers": gpu_layers, "gpu_layers_draft": gpu_layers_draft, "lora": lora, "lora_draft": lora_draft}
    given |= {"device": device, "device_draft": device_draft, "tensor_split": tensor_split}
    given |= Settings.named(sampling, speculative)
    given |= {"rpc": rpc, "rpc_insecure": rpc_insecure}
    settings = resolve(profile, given)
    ways = [settings, replace(settings, drafter="ngram")] if speculative and speculative.ngram_corpus else []
    return Engine(settings, accept=speculative.accept if speculative else None, ways=ways)
