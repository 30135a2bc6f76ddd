"""The Hugging Face Hub: the only module that imports huggingface_hub."""

from __future__ import annotations

from importlib.metadata import version as _version
from pathlib import Path


def version() -> str:
    """The installed huggingface_hub's version."""
    return _version("huggingface-hub")


def cache_dir() -> Path:
    """Where weights are kept: the Hub's own cache (HF_HOME, HF_HUB_CACHE), nowhere else."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)
