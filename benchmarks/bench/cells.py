"""What is measured: a cell is a model, a suite and a temperature, and each has its methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

DEMO = Path(__file__).parents[2] / "profiles" / "demo"
SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
QWEN_SMALL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
"""The real models, by the names of their files in the folder that SPECDEC_REAL_MODELS names."""

SUITES = ("edit", "code", "chat", "edits", "summarisation", "structured", "reasoning", "translation")
ALONE, AGAIN, DEFAULT = "target alone", "target alone, again", "default"
SIMPLE = "llama-speculative-simple, 4 tokens"
FIXED = (2, 4, 8)
"""Fixed numbers of draft tokens, of which the best counts."""


@dataclass(frozen=True, slots=True)
class Model:
    """A target and, if it has one, a draft, by their files' names. raw: no chat template. drafters: those that are
    measured alone, the first also with fixed lengths.
    """

    name: str
    target: str
    draft: str | None = None
    drafters: tuple[str, ...] = ("ngram",)
    raw: bool = False
    suites: tuple[str, ...] = SUITES


def _bundled(name: str, draft: str, *drafters: str) -> Model:
    return Model(name, str(DEMO / "target.gguf"), str(DEMO / draft), drafters, raw=True, suites=("python",))


MODELS = (
    Model("SmolLM2 135M", SMOL, drafters=("ngram", "lookahead")),
    Model("Qwen2.5-Coder 1.5B", QWEN),
    Model("Qwen2.5-Coder 1.5B + 0.5B", QWEN, QWEN_SMALL, ("model", "ngram")),
    Model("Qwen2.5-Coder 1.5B + SmolLM2", QWEN, SMOL, ("model",), suites=("code", "chat")),
    _bundled("bundled", "draft.gguf", "model", "ngram"),
    _bundled("bundled, EAGLE-3", "eagle3.gguf", "eagle3"),
    _bundled("bundled, Medusa", "medusa.gguf", "medusa"),
)
_QUICK_SUITES = ("edit", "code", "chat")
_QUICK_CELLS = {"SmolLM2 135M": _QUICK_SUITES, "Qwen2.5-Coder 1.5B": ("edit",), "bundled": ("python",)}


@dataclass(frozen=True, slots=True)
class Method:
    """A way to answer. tool: who does it. flags: of llama.cpp's tool. config: `SpeculativeConfig` fields of specdec."""

    name: str
    tool: Literal["specdec", "llama-server", "llama-speculative-simple"] = "specdec"
    flags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict, hash=False)


def methods_of(model: Model, quick: bool) -> list[Method]:
    """Every method of a model, in the order of the first round; the target alone is first and last."""
    own = [Method(DEFAULT)]
    if not quick:
        own += [Method(drafter, config={"drafter": drafter}) for drafter in model.drafters]
        first = model.drafters[0]
        own += [Method(f"{first}, {k} tokens", config={"drafter": first, "draft_tokens": k}) for k in FIXED]
    alone = {"drafter": "none"}
    return [Method(ALONE, config=alone), *own, *_peers(model, quick), Method(AGAIN, config=alone)]


def _peers(model: Model, quick: bool) -> list[Method]:
    if model.raw and model.drafters[0] != "model":  # llama.cpp knows no such heads, or needs them in other files
        return [_server("target alone", "none")]
    kinds = ("ngram-simple", "ngram-mod") if quick else ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
    found = [_server("target alone", "none"), *(_server(kind, kind) for kind in kinds)]
    if model.draft is None or Path(model.draft).name == SMOL:  # it has another tokenizer than the target
        return found
    lengths = [(4, "0.75")] if quick else [*product((2, 4, 8), ("0", "0.75"))]
    for n, p_min in lengths:
        flags = ("--spec-draft-n-max", str(n), "--spec-draft-n-min", "0", "--spec-draft-p-min", p_min)
        found.append(_server(f"draft model, {n} tokens, p-min {p_min}", "draft-simple", *flags))
    simple = ("--spec-type", "draft-simple", "--spec-draft-n-max", "4", "--spec-draft-n-min", "0")
    return found if quick else [*found, Method(SIMPLE, "llama-speculative-simple", simple)]


def _server(name: str, kind: str, *flags: str) -> Method:
    return Method(f"llama-server, {name}", "llama-server", ("--spec-type", kind, *flags))


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a suite is measured. tokens: the most of an answer."""

    prompts: int
    tokens: int
    quick: bool = False


QUICK, FULL = Size(3, 64, quick=True), Size(6, 96)
"""More prompts say more than more rounds, and servers may remember a prompt that they have answered before."""


@dataclass(frozen=True, slots=True)
class Cell:
    model: Model
    suite: str
    temperature: float

    @property
    def key(self) -> str:
        return f"{self.model.name} | {self.suite} | {self.temperature:g}"


def cells(models: Sequence[Model], quick: bool) -> list[Cell]:
    """All cells, greedy ones first, those of a model together."""
    quick_suites = {model.name: _QUICK_CELLS.get(model.name, ()) for model in MODELS}
    return [
        Cell(model, suite, temperature)
        for temperature in ((0.0,) if quick else (0.0, 0.8))
        for model in models
        for suite in model.suites
        if not quick or suite in quick_suites.get(model.name, _QUICK_SUITES)
    ]


def size_of(cell: Cell, quick: bool) -> Size:
    """How much of a cell is measured. The bundled pair answers in milliseconds, so it gets more prompts; an edit gets
    longer answers, because it begins with words of its own, and copies later.
    """
    size = QUICK if quick else FULL
    prompts, tokens = 6 * cell.model.raw or 1, 2 if cell.suite in ("edit", "edits") and not quick else 1
    return replace(size, prompts=size.prompts * prompts, tokens=size.tokens * tokens)
