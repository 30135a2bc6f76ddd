"""The arithmetic of a head's drafts, against a loop that really drafts; and on files of each architecture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mtp_arithmetic
import numpy as np
import pytest
import tiny
from mtp_arithmetic import Arithmetic, Pair, along, arithmetic

from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler

N_VOCAB, DRAFT, TOKENS, END = 6, 3, 12, 5
TABLES = np.random.default_rng(3).normal(size=(1 + DRAFT, N_VOCAB, N_VOCAB)).astype(np.float32) * 2
TABLES[1:] = 0.7 * TABLES[0] + 0.5 * TABLES[1:]
"""Logits after each token: the target's, and the head's at each token of a draft."""


class Scripted:
    """A context whose rows depend on the last token and its number in the draft. The hidden row holds both."""

    def __init__(self, is_head: bool) -> None:
        self._is_head, self._text = is_head, list[int]()

    def read(self, token: int, position: int, hidden: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        assert position == len(self._text), "tokens are read in order"
        depth = 0
        if self._is_head:
            assert hidden is not None
            assert hidden[1] == (self._text[-1] if self._text else 0), "the hidden row is of the token before"
            depth = int(hidden[0]) + 1
        self._text.append(token)
        return TABLES[depth, token], np.array([depth, token], np.float32)

    def drop(self, position: int) -> None:
        del self._text[position:]


class ScriptedPair(Pair):
    def __init__(self) -> None:
        self.trunk, self.head = Scripted(False), Scripted(True)  # type: ignore[assignment]

    def tokenize(self, text: str) -> list[int]:
        return [int(digit) for digit in text]

    def is_end(self, token: int) -> bool:
        return token == END


def loop(prompt: Sequence[int], sampler: StandardSampler, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Speculative decoding on the tables: tokens drafted and accepted, by their number in a draft."""
    drafted, accepted = np.zeros(DRAFT), np.zeros(DRAFT)

    def row(depth: int, token: int) -> np.ndarray:
        logits = TABLES[depth, token]
        if sampler.greedy:
            return np.eye(N_VOCAB)[logits.argmax()]
        found = sampler.categorical(logits)
        dense = np.zeros(N_VOCAB)
        dense[slice(None) if found.ids is None else found.ids] = found.probs
        return dense

    def draw(weights: np.ndarray) -> int:
        return int(rng.choice(N_VOCAB, p=weights / weights.sum()))

    answer = [draw(row(0, prompt[-1]))]
    while len(answer) < TOKENS and END not in answer:
        length = min(DRAFT, TOKENS - len(answer) - 1)
        tokens = answer[-1:]
        for index in range(length):
            tokens.append(draw(row(1 + index, tokens[-1])))
        drafted[:length] += 1
        for index in range(length):
            p, q, token = row(0, tokens[index]), row(1 + index, tokens[index]), tokens[index + 1]
            if rng.random() * q[token] >= p[token]:
                answer.append(draw(np.maximum(p - q, 0)))
                break
            accepted[index] += 1
            answer.append(token)
            if token == END:
                break
        else:
            answer.append(draw(row(0, tokens[-1])))
    return drafted, accepted


def test_greedy_counts_are_those_of_a_loop() -> None:
    prompts = ["0", "1", "2", "34", "43"]
    sampler = StandardSampler(SamplingSettings(0.0))
    loops = [loop([int(digit) for digit in prompt], sampler, np.random.default_rng(0)) for prompt in prompts]
    drafted, accepted = (np.sum(parts, axis=0) for parts in zip(*loops, strict=True))
    result = along(ScriptedPair(), prompts, TOKENS, DRAFT, 0.0, 1)
    assert result.drafted == tuple(drafted)
    assert result.accepted == tuple(accepted)
    assert 0 < sum(accepted) < sum(drafted)


@pytest.mark.slow
def test_sampled_rates_are_those_of_a_loop() -> None:
    rng, sampler = np.random.default_rng(1), StandardSampler(SamplingSettings(0.8))
    loops = [loop([1], sampler, rng) for _ in range(4000)]
    drafted, accepted = (np.sum(parts, axis=0) for parts in zip(*loops, strict=True))
    result = along(ScriptedPair(), ["1"], TOKENS, DRAFT, 0.8, 1500)
    assert np.array(result.per_position) == pytest.approx(accepted / drafted, abs=0.015)
    assert np.array(result.drafted) / 1500 == pytest.approx(drafted / 4000, rel=0.03)


@pytest.mark.parametrize("kind", [kind for kind, heads in tiny.PREDICTING.items() if heads == 1])
def test_it_reads_every_architecture(kind: str, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", kind)
    result: Arithmetic = arithmetic(path, ["def f(x):"], tokens=8, draft=2, temperature=0.8)
    assert 0 < result.acceptance_rate < 1
    assert result.drafted[0] >= result.drafted[1]


def test_a_model_of_several_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="3 heads"):
        arithmetic(tiny.write(tmp_path / "tiny.gguf", "step35-mtp3"), ["x"])


def test_the_command_prints_its_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    path = tiny.write(tmp_path / "tiny.gguf", "glm4moe-mtp")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("def f(x):\n")
    monkeypatch.setattr("sys.argv", ["", str(path), "--suite", str(prompts), "--max-tokens", "6"])
    mtp_arithmetic.main()
    assert "draft tokens, in" in capsys.readouterr().out
