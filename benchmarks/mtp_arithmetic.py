"""What a prediction head's drafts are worth, from rows alone: no speculative loop takes part.

    python benchmarks/mtp_arithmetic.py MODEL [--temp 0.8] [--draft-tokens 3]

The target writes each text. Then the head drafts in every place of it, and reads the text's tokens in place of its own:
a draft that has come so far was accepted so far. At temperature 0 a token is accepted where it is the target's. At a
temperature token x of the text was accepted with probability min(1, q(x) / p(x)), and a token that the head draws is
accepted with probability sum(min(p, q)). For models with one head, which has a memory of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import llama_cpp.llama_cpp_ext as ext
import numpy as np

from specdec_cli.decoding.accept import onto
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.llama import library
from specdec_cli.measure import suites

N_CTX = 1024


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """steps, drafted: how many a loop would take that drafts in the places it comes to, and their draft tokens.
    accepted: of these, by their number in the draft. everywhere: the same, had every place begun a draft, as shares.
    """

    steps: float
    drafted: tuple[float, ...]
    accepted: tuple[float, ...]
    everywhere: tuple[float, ...]

    @property
    def acceptance_rate(self) -> float:
        return sum(self.accepted) / sum(self.drafted)

    @property
    def per_position(self) -> tuple[float, ...]:
        """Accepted of drafted, by the token's number in the draft."""
        return tuple(kept / max(drawn, 1e-9) for kept, drawn in zip(self.accepted, self.drafted, strict=True))


class Context:
    """One sequence in a context of llama.cpp that reads tokens one by one: the model's own layers, or its head."""

    def __init__(self, model: Any, is_head: bool, threads: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = N_CTX
        params.n_threads = params.n_threads_batch = threads
        params.ctx_type = lib.LLAMA_CONTEXT_TYPE_MTP if is_head else lib.LLAMA_CONTEXT_TYPE_DEFAULT
        self._handle = lib.llama_init_from_model(model, params)
        if not self._handle:
            raise SystemExit("llama.cpp refused the context")
        ext.llama_set_embeddings_nextn(self._handle, True, is_head)
        self._batch = lib.llama_batch_ext_init(self._handle)
        self._width: int = lib.llama_model_n_embd_out(model)
        self._n_vocab: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def read(self, token: int, position: int, hidden: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The logits after a token, and its hidden row. hidden: of the token before, which a head reads too."""
        lib.llama_batch_ext_clear(self._batch)
        lib.llama_batch_ext_add_token(self._batch, 0, token)
        lib.llama_batch_ext_set_pos(self._batch, 0, (lib.llama_pos * 4)(*[position] * 3, 0))
        lib.llama_batch_ext_set_output_logits(self._batch, 0, True)
        if hidden is not None:
            data = hidden.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            lib.llama_batch_ext_set_embd_token(self._batch, 0, lib.llama_embd(data, 1, self._width))
        if code := lib.llama_process(self._handle, lib.LLAMA_PROCESS_TYPE_DECODE, self._batch):
            raise SystemExit(f"llama.cpp failed to decode: code {code}")
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(self._handle, 0), (self._n_vocab,)).copy()
        row = np.ctypeslib.as_array(ext.llama_get_embeddings_nextn_ith(self._handle, 0), (self._width,)).copy()
        return logits, row

    def drop(self, position: int) -> None:
        """Forget all from a position on."""
        lib.llama_memory_seq_rm(lib.llama_get_memory(self._handle), 0, position, -1)

    def close(self) -> None:
        lib.llama_batch_ext_free(self._batch)
        lib.llama_free(self._handle)


class Pair:
    """A model's own layers and its head."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        library.start()
        params = lib.llama_model_default_params()
        params.load_mtp = True
        self.model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        if (heads := lib.llama_model_n_layer_nextn(self.model)) != 1:
            raise SystemExit(f"{path} has {heads} heads; this is for models with one")
        self._vocab = lib.llama_model_get_vocab(self.model)
        self.trunk, self.head = (Context(self.model, is_head, threads) for is_head in (False, True))

    def tokenize(self, text: str) -> list[int]:
        data = text.encode("utf-8")
        tokens = (lib.llama_token * (len(data) + 16))()
        return list(tokens[: lib.llama_tokenize(self._vocab, data, len(data), tokens, len(tokens), True, True)])

    def is_end(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token))

    def write(
        self, prompt: Sequence[int], count: int, sampler: StandardSampler, rng: np.random.Generator
    ) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:
        """A text of the target's, to its end or so many tokens beyond the prompt; logits and hidden row after each."""
        text, rows, hidden = list(prompt), [], []
        self.trunk.drop(0)
        for position in range(len(prompt) + count):
            if position == len(text):
                row = rows[-1]
                token = sampler.argmax(row) if sampler.greedy else sampler.categorical(row).draw(rng)
                text.append(token)
                if self.is_end(token):
                    break
            for parts, part in zip((rows, hidden), self.trunk.read(text[position], position), strict=True):
                parts.append(part)
        return text, rows, hidden

    def drafts(
        self, text: Sequence[int], hidden: Sequence[np.ndarray], first: int, most: int
    ) -> list[list[np.ndarray]]:
        """The head's rows of a draft that begins after each token from place `first` on, and follows the text."""
        self.head.drop(0)
        before, found = np.zeros_like(hidden[0]), []
        for place, token in enumerate(text[:-1]):
            row, state = self.head.read(token, place, before)
            if place >= first:
                rows = [row]
                for ahead in range(place + 1, min(place + most, len(text) - 1)):
                    row, state = self.head.read(text[ahead], ahead, state)
                    rows.append(row)
                found.append(rows)
                self.head.drop(place + 1)
            before = hidden[place]
        return found

    def close(self) -> None:
        self.head.close()
        self.trunk.close()
        lib.llama_model_free(self.model)


def chances(sampler: StandardSampler, p_row: np.ndarray, q_row: np.ndarray, token: int) -> tuple[float, float]:
    """How likely a draft token is accepted; and how likely `token`, which stands in the text, was a draft token."""
    if sampler.greedy:
        equal = float(q_row.argmax() == p_row.argmax())
        return equal, equal
    p, q = sampler.categorical(p_row), sampler.categorical(q_row)
    return float(np.minimum(p.probs, onto(p, q)).sum()), min(1.0, q.prob(token) / p.prob(token))


def arithmetic(
    path: Path, prompts: Sequence[str], tokens: int = 128, draft: int = 3, temperature: float = 0.0, texts: int = 1
) -> Arithmetic:
    """Drafts of so many tokens, along texts of so many tokens that the target writes to each prompt. texts: to each
    prompt, with other random numbers. A draft is never longer than what the answer has room for beside the target's own
    token. The first token of an answer comes with the prompt, so nothing is drafted for it.
    """
    pair = Pair(path)
    try:
        return along(pair, prompts, tokens, draft, temperature, texts)
    finally:
        pair.close()


def along(pair: Pair, prompts: Sequence[str], tokens: int, draft: int, temperature: float, texts: int) -> Arithmetic:
    """`arithmetic` of a pair that is loaded already."""
    sampler = StandardSampler(SamplingSettings(temperature))
    steps, places = 0.0, 0
    drafted, accepted, everywhere = np.zeros(draft), np.zeros(draft), np.zeros(draft)
    for seed in range(texts):
        for number, prompt in enumerate(prompts):
            ids = pair.tokenize(prompt)
            text, p_rows, hidden = pair.write(ids, tokens, sampler, np.random.default_rng([seed, number]))
            reached = np.zeros(len(text) + 1)  # the chance that a loop begins a step after each token of the text
            reached[len(ids)] = 1.0
            room = len(ids) + tokens
            for place, q_rows in enumerate(pair.drafts(text, hidden, len(ids), draft), len(ids)):
                here, so_far = reached[place], 1.0
                steps, places = steps + here, places + 1
                length = max(0, min(draft, room - place - 2))
                drafted[:length] += here
                for index, q_row in enumerate(q_rows[:length]):
                    rate, stood = chances(sampler, p_rows[place + index], q_row, text[place + index + 1])
                    accepted[index] += here * so_far * rate
                    everywhere[index] += so_far * rate
                    reached[place + index + 1] += here * so_far * (1 - stood)
                    so_far *= stood
                reached[min(place + length + 1, len(text))] += here * so_far
    return Arithmetic(steps, tuple(drafted), tuple(accepted), tuple(everywhere / max(1, places)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--suite", default="python")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--texts", type=int, default=1, help="to each prompt")
    chosen = parser.parse_args()
    prompts = [prompt.text for prompt in suites.load(chosen.suite)]
    result = arithmetic(chosen.model, prompts, chosen.max_tokens, chosen.draft_tokens, chosen.temp, chosen.texts)
    for name, values in (("accepted of drafted", result.per_position), ("in every place", result.everywhere)):
        print(f"{name}: " + ", ".join(f"{value:.4f}" for value in values))
    print(f"{result.acceptance_rate:.4f} of {sum(result.drafted):,.0f} draft tokens, in {result.steps:,.0f} steps")


if __name__ == "__main__":
    main()
