"""Whose weights a GGUF repository has. Exports themselves are in cli/test_serving_export.py."""

from specdec_cli.measure.export import original_of
from specdec_cli.pairs import profiles

ORIGINALS = {
    "Qwen/Qwen3-8B-GGUF:Q4_K_M": "Qwen/Qwen3-8B",
    "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0": "meta-llama/Llama-3.1-8B-Instruct",
    "bartowski/mistralai_Mistral-Small-3.1-24B-GGUF": "mistralai/Mistral-Small-3.1-24B",
    "unsloth/Qwen3.5-27B-GGUF/Qwen3.5-27B-Q4_K_M.gguf": "Qwen/Qwen3.5-27B",
    "bartowski/Meta-Llama-3-8B-Instruct-GGUF": "meta-llama/Meta-Llama-3-8B-Instruct",
    "mradermacher/Qwen3-8B-i1-GGUF:Q4_K_M": "Qwen/Qwen3-8B",
    "bartowski/Something-New-GGUF": "",
    "model.gguf": "",
}


def test_the_maker_follows_from_the_names():
    assert {reference: original_of(reference) for reference in ORIGINALS} == ORIGINALS
    for profile in map(profiles.load, set(profiles.names()) - {profiles.DEMO}):
        assert original_of(profile.target) and original_of(profile.draft), profile.name
