"""A prompt of thousands of tokens is read and answered."""

from __future__ import annotations

import json

import pytest
from driver import specdec

LINES = [
    f"def area_{i}(width: float, height: float) -> float:\n"
    f'    """Area {i} of a room in square metres."""\n    return width * height * {i}\n\n'
    for i in range(1, 76)
]


@pytest.fixture
def prompt(tmp_path):
    """Some 3,000 tokens of code, and the beginning of more of the kind."""
    path = tmp_path / "prompt.txt"
    path.write_text("".join(LINES) + "def area_76")
    return path


def answered(prompt, target, *options):
    args = ("-f", prompt, "--raw", "-m", target, "-n", 48, "-c", 4096, "--json", *options)
    done = specdec("run", *args, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["smol", "qwen_small"])
def test_a_long_prompt_is_answered(name, prompt, request):
    found = answered(prompt, request.getfixturevalue(name), "--drafter", "ngram", "-k", 6)
    assert 2900 < found["prompt_tokens"] < 3300
    assert found["finish_reason"] == "length" and found["completion_tokens"] == 48
    assert found["text"].startswith("(width: float, height: float) -> float:\n")
    assert found["stats"]["accepted"] > 24  # it has all been there before


def test_a_draft_with_a_short_memory_goes_on(prompt, smol):
    """It repeats lines of a text of which it holds the twelfth part."""
    alone = answered(prompt, smol, "-t", 1, "--drafter", "none")
    draft = ("-md", smol, "--drafter", "model", "-k", 4, "--draft-window", 256)
    found = answered(prompt, smol, "-t", 1, *draft)
    assert found["tokens"] == alone["tokens"]
    assert found["stats"]["accepted"] > 24 and not [note for note in found["notes"] if "failed" in note]
