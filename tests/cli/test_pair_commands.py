"""What the commands about pairs print stays as it was recorded, line by line.

To accept a change, delete what it concerns from `pair_commands/` and run the test again.
"""

import json
import re
from datetime import date
from pathlib import Path

import ggufs
import hub_pairs
import pytest
from driver import DEMO, DRAFT, TARGET, assert_recorded, call
from hub_pairs import NAME, PAIR, with_other_tokenizer
from hub_server import HubServer

from specdec_cli.llama import kernels
from specdec_cli.pairs import profiles, speeds

KEPT = Path(__file__).parent / "pair_commands"
QWEN = ("pull", "--target", "org/qwen-GGUF:Q4_K_M")
SPEED = speeds.Speed(1.5, 1.4, 1.6, "k=2", "2026-01-01")
OWN = """target: t.gguf
draft: d.gguf
description: Own
fits_gb: 3.5
gated: true
licence: MIT
settings: {temp: 0.5}
"""
WORDS = (
    (r"\d{4}-\d\d-\d\d", "DAY"),
    (r"[\d.,]+ [GM]B( with -c [\d,]+, buffers included: ).*?\(.*?\)", r"NEEDED\1FITS"),
    (r"[\d.,]+ [GM]B are free in", "FREE are free in"),
    (r"took \S+ s", "took TIME s"),
    (r"about [\d,]+ (s|minutes)", "about TIME"),
    (r"\d+\.\d% of the target's own tokens", "AGREEMENT of the target's own tokens"),
)
WAYS = {
    "check-incompatible": [("check", TARGET, "OTHER")],
    "check-encoder": [("check", TARGET, "ENCODER")],
    "pull-half-local": [("pull", "--target", TARGET, *PAIR[2:], "--dry-run")],
    "pull-proposals": [QWEN],
    "pull-first-proposal": [(*QWEN, "--yes", "--dry-run")],
    "pull": [("pull", *PAIR, "--yes"), ("pull", *PAIR), ("ls", "--here"), ("show", NAME), ("check", *PAIR[1::2])],
    "pull-local": [("pull", "--target", TARGET, "--draft", DRAFT)],
    "rm": [
        ("pull", *PAIR, "--yes", "--as", "one"),
        ("pull", "--target", PAIR[3], "--draft", PAIR[3], "--yes"),
        ("rm", "one", "--yes"),
        ("ls", "--here"),
        ("rm", "draft-Q8_0+draft-Q8_0", "--yes"),
        ("rm", "one", "--yes"),
    ],
    "rm-begun": [("rm", "begun", "--yes")],
    "ls": [("ls",)],
    "show-bundled": [("show", "demo")],
    "show-gated": [("show", "llama-3.3-70b")],
    "show-own": [("show", "own")],
    "prune": [("draft", "prune", "-m", TARGET, "--keep-layers", "0-2,5", "-o", "OUT")],
    "quantize": [("draft", "quantize", "-m", "demo", "--type", "q3_k", "-o", "OUT")],
    "drafters": [("drafters",)],
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with HubServer() as hub:
        hub_pairs.publish(hub)
        hub_pairs.publish_family(hub, "org/qwen-GGUF", tmp_path_factory.mktemp("family"))
        yield hub


@pytest.fixture
def places(hub, monkeypatch, tmp_path, nothing_known) -> dict[str, str]:
    """Files that the commands name, and what stands for places of this machine."""
    hub_pairs.here(monkeypatch, hub, tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    hub_pairs.own_profile("begun", "target: org/begun-GGUF:Q8_0\n")
    folder = hub_pairs.own_profile("own", OWN)
    (folder / "t.gguf").write_bytes(TARGET.read_bytes()[:1000])
    (folder / "d.gguf").write_bytes(b"12345")
    speeds.keep_speed(folder / "t.gguf", folder / "d.gguf", SPEED)
    blobs = tmp_path / "hf" / "hub" / "models--org--begun-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.incomplete").write_bytes(b"x" * 3000)
    encoder = ggufs.with_keys(DRAFT, tmp_path / "e.gguf", ggufs.key("llama.attention.causal", ggufs.BOOL, b"\0"))
    return {
        "OTHER": str(with_other_tokenizer(tmp_path)),
        "ENCODER": str(encoder),
        "OUT": str(tmp_path / "out.gguf"),
        "TMP": str(tmp_path),
        "HUB": hub.endpoint,
        "PROFILES": str(DEMO.parent),
    }


def invoke(args, places) -> list[object]:
    done = call(*(places.get(str(arg), arg) for arg in args))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return [done.exit_code, done.stdout, done.stderr]


def placed(text: str, places: dict[str, str]) -> str:
    for name in ("TMP", "HUB", "PROFILES"):
        text = text.replace(places[name], name)
    return text.replace(date.today().isoformat(), "DAY")


def others(name: str) -> bool:
    """Whether a pair is one of the bundled profiles, to which more may come; two of them will do."""
    return name in profiles.names() and profiles.load(name).folder == DEMO.parent and name not in ("demo", "qwen3-8b")


def kept(name: str, found: object) -> None:
    assert_recorded(KEPT / f"{name}.json", found)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_as_text(way, places):
    found = []
    for args in WAYS[way]:
        code, *streams = invoke(args, places)
        lines = [[" ".join(line.split()) for line in placed(text, places).splitlines()] for text in streams]
        lines = [[line for line in text if not others(line.partition(" ")[0])] for text in lines]
        found.append([code, *([masked(line) for line in text] for text in lines)])
    kept(f"{way}.text", found)


def masked(line: str) -> str:
    for pattern, name in WORDS:
        line = re.sub(pattern, name, line)
    return line


@pytest.mark.slow
def test_a_search(places, tmp_path):
    """Which layers go, and how well the rest agrees, is the machine's rounding."""
    (tmp_path / "prompts.txt").write_text("class Point:\ndef merge(left, right):\nraise ValueError(f\n")
    args = ("draft", "prune", "-m", TARGET, "--search", 4, "--prompts", tmp_path / "prompts.txt", "-t", 1, "-o", "OUT")
    code, out, err = invoke((*args, "--json"), places)
    assert (code, err) == (0, "")
    made = json.loads(out)
    whole, *steps = made["search"]
    assert whole["agreement"] > 0.98 and whole["dropped"] is None and whole["layers"] == list(range(6))
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
    table, *_ = invoke(("doctor",), places)[1].split("\n\n")
    labels = {line.split("  ")[0] for line in table.splitlines()}
    assert {"specdec", "processor", "weights", "profiles", "bundled pair"} <= labels


def test_nothing_unknown_is_kept():
    assert {path.name for path in KEPT.iterdir()} == {f"{way}.text.json" for way in WAYS}
