"""The repositories of weights as their makers publish them, for engines that read no GGUF."""

from __future__ import annotations

from specdec_cli.pairs import references

_CONVERTERS = {"bartowski", "unsloth", "ggml-org", "lmstudio-community", "mradermacher", "TheBloke"}
"""Who publishes GGUF files of others' models; all else is taken for the maker."""
_MAKERS = {
    "DeepSeek-": "deepseek-ai",
    "Llama-3": "meta-llama",
    "Meta-Llama-3": "meta-llama",
    "Qwen": "Qwen",
    "SmolLM": "HuggingFaceTB",
    "gemma-": "google",
    "gpt-oss-": "openai",
}
"""By the beginnings of their models' names."""


def original_of(text: str) -> str:
    """The maker's repository of a GGUF model on the Hub (`repo:quant` or `repo/file.gguf`), as far as names tell it;
    empty otherwise. It is not looked up.
    """
    reference = references.parse(text)
    if reference is None or not reference.repo.endswith("-GGUF"):
        return ""
    owner, _, name = reference.repo.removesuffix("-GGUF").partition("/")
    if owner not in _CONVERTERS:
        return f"{owner}/{name}"
    maker, found, rest = name.partition("_")
    if found:
        return f"{maker}/{rest}"
    name = name.removesuffix("-i1")
    name = name.removeprefix("Meta-") if "-3.1-" in name else name  # from 3.1 on the makers left it out
    return next((f"{maker}/{name}" for prefix, maker in _MAKERS.items() if name.startswith(prefix)), "")
