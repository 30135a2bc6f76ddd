"""Do SGLang and vLLM take what `specdec export` writes? Their own parsers say so; nothing is run.

Neither installs on a machine without a GPU. Unpack the Python files of their wheels (`pip download --no-deps`) into a
folder, with the packages that their imports name (some 25 MB for SGLang, 400 MB for vLLM) and PyTorch:

    PYTHONPATH=FOLDER:.venv/lib/python3.11/site-packages:. python benchmarks/peers/export_parsers.py sglang vllm
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from specdec_cli.engine.serving_export import export

PAIR = "qwen3-8b"
DRAFTERS = (None, "ngram")
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


def exported(engine: str, drafter: str | None) -> list[str]:
    """The command line for a pair that is not here."""
    return shlex.split(export(engine, PAIR, {"drafter": drafter, "ctx": 4096}).command)


def sglang() -> None:
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415  # one of the two is installed
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    for drafter in DRAFTERS:
        arguments = parser.parse_args(exported("sglang", drafter)[3:])
        print("sglang:", SpeculativeAlgorithm.from_string(arguments.speculative_algorithm))


def vllm() -> None:
    from vllm.config import ModelConfig, ParallelConfig  # noqa: PLC0415
    from vllm.config.speculative import SpeculativeConfig  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model: Any = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float32")
        for drafter in DRAFTERS:
            parts = exported("vllm", drafter)
            config = json.loads(parts[parts.index("--speculative-config") + 1])
            config |= {"model": folder} if "model" in config else {}
            made = SpeculativeConfig(target_model_config=model, target_parallel_config=ParallelConfig(), **config)
            print("vllm:", made.method, made.num_speculative_tokens)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"sglang": sglang, "vllm": vllm}[name]()
