"""What the commands about pairs print stays as it was recorded, line by line.

To accept a change, delete what it concerns from `pair_commands/` and run the test again.
"""

import json
import re
from pathlib import Path

import pytest
from driver import DEMO, TARGET, assert_recorded, call
from hub_pairs import NAME, PAIR, with_other_tokenizer

from specdec_cli.llama import kernels

KEPT = Path(__file__).parent / "pair_commands"
WORDS = (
    (r"\d{4}-\d\d-\d\d", "DAY"),
    (r"[\d.,]+ [GM]B( with -c [\d,]+, buffers included: ).*?\(.*?\)", r"NEEDED\1FITS"),
    (r"[\d.,]+ [GM]B are free in", "FREE are free in"),
    (r"took \S+ s", "took TIME s"),
)
WAYS = {
    "check-incompatible": [("check", TARGET, "OTHER")],
    "pull": [("pull", *PAIR, "--yes"), ("pull", *PAIR), ("ls", "--here"), ("show", NAME), ("check", *PAIR[1::2])],
    "rm": [
        ("pull", *PAIR, "--yes", "--as", "one"),
        ("pull", "--target", PAIR[3], "--draft", PAIR[3], "--yes"),
        ("rm", "one", "--yes"),
        ("ls", "--here"),
        ("rm", "draft-Q8_0+draft-Q8_0", "--yes"),
        ("rm", "one", "--yes"),
    ],
    "show-gated": [("show", "llama-3.3-70b")],
    "quantize": [("draft", "quantize", "-m", "demo", "--type", "q3_k", "-o", "OUT")],
    "drafters": [("drafters",)],
}


@pytest.fixture
def places(inside, monkeypatch, tmp_path, nothing_known) -> dict[str, str]:
    """Files that the commands name, and what stands for places of this machine."""
    monkeypatch.setenv("COLUMNS", "2000")
    return {
        "OTHER": str(with_other_tokenizer(tmp_path)),
        "OUT": str(tmp_path / "out.gguf"),
        "TMP": str(tmp_path),
        "PROFILES": str(DEMO.parent),
    }


def invoke(args, places) -> list[object]:
    done = call(*(places.get(str(arg), arg) for arg in args))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return [done.exit_code, done.stdout, done.stderr]


def masked(line: str, places: dict[str, str]) -> str:
    line = " ".join(line.split())
    for name in ("TMP", "PROFILES"):
        line = line.replace(places[name], name)
    for pattern, name in WORDS:
        line = re.sub(pattern, name, line)
    return line


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_as_text(way, places):
    found = []
    for args in WAYS[way]:
        code, *streams = invoke(args, places)
        found.append([code, *([masked(line, places) for line in text.splitlines()] for text in streams)])
    assert_recorded(KEPT / f"{way}.text.json", found)


@pytest.mark.slow
def test_a_search(places, tmp_path):
    """Which layers go, and how well the rest agrees, is the machine's rounding."""
    (tmp_path / "prompts.txt").write_text("class Point:\ndef merge(left, right):\nraise ValueError(f\n")
    args = ("draft", "prune", "-m", TARGET, "--search", 4, "--prompts", tmp_path / "prompts.txt", "-t", 1, "-o", "OUT")
    code, out, err = invoke((*args, "--json"), places)
    assert (code, err) == (0, "")
    made = json.loads(out)
    whole, *steps = made["search"]
    assert whole["agreement"] > 0.98 and whole["layers"] == list(range(6))
    for before, step in zip(made["search"], steps, strict=False):
        assert step["layers"] == [layer for layer in before["layers"] if layer != step["dropped"]]
    assert steps[-1]["layers"] == made["layers"] and 0.2 < steps[-1]["agreement"] == made["agreement"] < 1


def test_doctor(places, monkeypatch):
    monkeypatch.setattr(kernels, "try_again", kernels.verdict)
    code, out, err = invoke(("doctor", "--json"), places)
    result = json.loads(out)
    assert (code, err) == (0, "") and result["bundled_pair"]["ok"] and result["rpc"] is True
    assert {"specdec", "llama-cpp-python", "llama.cpp", "platform"} <= set(result["versions"])
    assert result["threads"] >= 1 and result["devices"][0]["kind"] and result["kernels"]["used"]
    assert "bundled pair" in invoke(("doctor",), places)[1]


def test_nothing_unknown_is_kept():
    assert {path.name for path in KEPT.iterdir()} == {f"{way}.text.json" for way in WAYS}
