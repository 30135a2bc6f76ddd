"""Do the words that `specdec export` writes stand in the engines' own sources? Nothing of them is run.

pip download --no-deps vllm sglang lmstudio -d wheels
python benchmarks/peers/exported_words.py wheels
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from specdec_cli.engine.served_pair import served_pair
from specdec_cli.engine.serving_formats import ENGINES

PAIR = "qwen3-8b"
NEWER = {"maxTokensToDraft"}
"""Keys that lmstudio-js has (its tests of the configuration name them), and the Python package does not yet."""


def exported(engine: str, drafter: str | None = None) -> str:
    """What is written for a pair that is not here."""
    chosen = ENGINES[engine]
    written = chosen.write(served_pair(PAIR, {"drafter": drafter, "ctx": 4096}, chosen.policy))
    return written.command or written.text


def words(text: str) -> Iterator[str]:
    """Identifiers and texts of a Python source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def flags(command: str) -> list[str]:
    return [word for word in shlex.split(command) if word.startswith("--")]


def wanted_of(engine: str) -> tuple[set[str], re.Pattern[str]]:
    """The words that must be known, and the files that know them."""
    if engine == "vllm":
        found: set[str] = set()
        for command in (exported("vllm"), exported("vllm", "ngram")):
            parts = shlex.split(command)
            config = json.loads(parts[parts.index("--speculative-config") + 1])
            found |= {*config, config["method"], *(flag[2:].replace("-", "_") for flag in flags(command))}
        return found, re.compile(r"vllm/(config/(speculative|model|vllm)|engine/arg_utils)\.py")
    if engine == "sglang":
        commands = exported("sglang"), exported("sglang", "ngram")
        named = {flag[2:].replace("-", "_") for command in commands for flag in flags(command)}
        return named | {"STANDALONE", "NGRAM"}, re.compile(r"sglang/srt/(server_args|arg_groups/.*|speculative/.*)\.py")
    keys = [field["key"] for field in json.loads(exported("lm-studio"))["operation"]["fields"]]
    return {part for key in keys for part in key.split(".")[2:]} - NEWER, re.compile(r"lmstudio/_kv_config\.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path)
    missing = False
    for wheel in sorted(parser.parse_args().wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        wanted, sources = wanted_of(name)
        with zipfile.ZipFile(wheel) as archive:
            files = [each for each in archive.namelist() if sources.fullmatch(each)]
            known = {word for each in files for word in words(archive.read(each).decode())}
        unknown = {word for word in wanted if word not in known}
        missing |= bool(unknown)
        print(f"{name} {version}: {len(wanted)} words, {f'unknown: {sorted(unknown)}' if unknown else 'all known'}")
    sys.exit(missing)


if __name__ == "__main__":
    main()
