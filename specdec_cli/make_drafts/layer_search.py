"""`draft prune --search`: which layers the target can do without, by measured agreement.

Greedy: of the layers left, the one whose loss costs least is dropped, again and again. Agreement is how often the rest
would propose, at every place of some of the target's own greedy answers, the token that stands there: one pass over
each answer with all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine import prompt as prompt_text
from specdec_cli.engine.model_loading import load_model
from specdec_cli.gguf.header import Header, Tensor, shown
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.make_drafts.draft_copy import CopyJob, SearchStep, layer_of, ranges
from specdec_cli.make_drafts.prune import require_prunable, size_with
from specdec_cli.measure import suites
from specdec_cli.measure.acceptance_traces import before_a_loop

_RESIDUAL = re.compile(r"(attn_output|ffn_down(_exps|_shexp|\.\d+)?)\.(weight|bias)")
_PROMPTS = 8
_ANSWER = 48
_LONGEST_PROMPT = 256
_MIN_TOKENS = 64
"""Below so many places agreement says nothing."""
_TRIED = 6
"""Layers tried for each one dropped, but for the first: those that cost least when last tried. Trying all would take
the square of their number."""


class SearchProgress(Protocol):
    """What is called while layers are searched for."""

    def searching(self, layers: int, keep: int, prompts: int, tokens: int, trials: int, seconds: float) -> None:
        """How much there is to do, once the first trial has shown how long one takes. seconds: about, in all."""

    def dropped(self, step: SearchStep, kept: str, bytes_: int) -> None:
        """A step is done. kept: the layers that are left, as ranges; bytes_: of a draft with them."""


@dataclass(frozen=True, slots=True)
class LayerSearch:
    """A choice of `keep` layers. prompts: a suite or a file of prompts; None for the suite `python`."""

    keep: int
    prompts: str | None = None
    gpu_layers: int = -1
    progress: SearchProgress | None = None

    def require(self, header: Header) -> int:
        """Bytes of the copy that layers are switched off in. Raises UsageError if that many cannot be kept."""
        count = require_prunable(header)
        if not 1 <= self.keep < count:
            raise UsageError(f"{self.keep} of {count} layers cannot be kept", f"Give --search 1 to {count - 1}.")
        if self.prompts:
            suites.load(self.prompts)
        return header.size

    def choose(self, job: CopyJob) -> tuple[tuple[int, ...], tuple[SearchStep, ...]]:
        """Drop layer after layer from a copy that is written to, until `keep` are left."""
        answers = _Answers(job, self.prompts, self.gpu_layers)
        whole, count = job.folder / "whole.gguf", require_prunable(job.header)
        job.write(whole.name)
        steps = self._search(answers, SkippableCopy(whole, count), count, job.header)
        whole.unlink()
        return steps[-1].layers, tuple(steps)

    def _search(self, answers: _Answers, copy: SkippableCopy, count: int, header: Header) -> list[SearchStep]:
        started = perf_counter()
        steps = [SearchStep(tuple(range(count)), None, answers.agreement(copy.path))]
        if self.progress:
            trials = 1 + count + sum(min(_TRIED, left) for left in range(self.keep + 1, count))
            seconds = trials * (perf_counter() - started)
            self.progress.searching(count, self.keep, len(answers.texts), answers.n_tokens, trials, seconds)
        when_dropped = dict.fromkeys(range(count), 1.0)  # agreement without a layer, as last tried
        while True:
            kept = steps[-1].layers
            if self.progress:
                self.progress.dropped(steps[-1], ranges(kept), size_with(header, kept))
            if len(kept) == self.keep:
                return steps
            tried = sorted(kept, key=lambda layer: -when_dropped[layer])
            for layer in tried[: None if len(kept) == count else _TRIED]:
                with copy.without(layer):
                    when_dropped[layer] = answers.agreement(copy.path)
            cheapest = max(kept, key=lambda layer: when_dropped[layer])
            copy.drop(cheapest)
            kept = tuple(layer for layer in kept if layer != cheapest)
            steps.append(SearchStep(kept, cheapest, when_dropped.pop(cheapest)))


class _Answers:
    """The target's own greedy answers. Raises SpecdecError if they are too short to measure anything by."""

    def __init__(self, job: CopyJob, suite: str | None, gpu_layers: int) -> None:
        self._job, self._placement = job, Placement(gpu_layers)
        self.texts: list[tuple[list[int], list[int]]] = []  # of each prompt its tokens, and those of its answer
        prompts = suites.select(suites.load(suite or "python"), limit=_PROMPTS)
        interrupt = job.options.interrupt
        with closing(load_model(job.target, self._placement, interrupt)) as model:
            longest = min(_LONGEST_PROMPT, (model.n_ctx_train or _LONGEST_PROMPT + _ANSWER) - _ANSWER)
            self._n_ctx = longest + _ANSWER
            with closing(self._context(model, 1)) as context:
                for prompt in prompts:
                    tokens = prompt_text.tokenize(prompt.text, model, job.header, stopped=interrupt.is_set).tokens
                    if len(tokens) <= longest and (answer := _answer(tokens, model, context)):
                        self.texts.append((tokens, answer))
        self.n_tokens = sum(len(answer) for _, answer in self.texts)
        if self.n_tokens < _MIN_TOKENS:
            raise SpecdecError(
                f"the target's answers have {self.n_tokens} tokens in all, too few to choose layers by",
                f"Give other --prompts: some of up to {longest} tokens, with answers longer than a word.",
            )

    def agreement(self, path: Path) -> float:
        """How often a model proposes the target's own next token."""
        agreed = 0
        with (
            closing(load_model(path, self._placement, self._job.options.interrupt)) as model,
            closing(self._context(model, _ANSWER)) as context,
        ):
            for prompt, answer in self.texts:
                context.rewind(0)
                if len(prompt) > 1:
                    context.decode(prompt[:-1])
                rows = context.decode([prompt[-1], *answer[:-1]], all_rows=True)
                agreed += int((rows.argmax(axis=1) == answer).sum())
        return agreed / self.n_tokens

    def _context(self, model: Model, rows: int) -> LlamaContext:
        return LlamaContext.open(model, self._n_ctx, rows, self._job.threads, self._job.options.interrupt)


def _answer(prompt: Sequence[int], model: Model, context: LlamaContext) -> list[int]:
    """The greedy answer to a prompt, up to where it begins to repeat itself."""
    context.rewind(0)
    answer = [int(context.decode(prompt)[0].argmax())]
    while len(answer) < _ANSWER and not model.is_end(answer[-1]):
        answer.append(int(context.decode(answer[-1:])[0].argmax()))
    return answer[: before_a_loop(answer)]


class SkippableCopy:
    """A model's file, in which zeros in its outlets leave a layer out; no model may be loaded from it meanwhile.

    Zero bytes are zeros in every type of ggml's, for each block's scale is among them.
    """

    def __init__(self, path: Path, layers: int) -> None:
        self.path = path
        self._places: list[list[slice]] = []  # of each layer: where its outlets lie
        header = read_header(path)
        for layer in range(layers):
            tensors = outlets(header, layer)
            names = {tensor.name.split(".")[2].split("_")[0] for tensor in tensors}
            if names != {"attn", "ffn"} or any(tensor.size is None for tensor in tensors):
                what = f"layers of a {shown(header.architecture)} model cannot be tried one by one"
                raise SpecdecError(what, "Choose them yourself: --keep-layers.")
            starts = [header.data_offset + tensor.offset for tensor in tensors]
            ends = [start + (tensor.size or 0) for start, tensor in zip(starts, tensors, strict=True)]
            self._places.append(list(map(slice, starts, ends)))

    def drop(self, layer: int) -> None:
        """Switch a layer off for good."""
        content = np.memmap(self.path, mode="r+")
        for place in self._places[layer]:
            content[place] = 0

    @contextmanager
    def without(self, layer: int) -> Iterator[None]:
        """Switch a layer off for a while."""
        content = np.memmap(self.path, mode="r+")
        saved = [content[place].copy() for place in self._places[layer]]
        self.drop(layer)
        try:
            yield
        finally:
            for place, weights in zip(self._places[layer], saved, strict=True):
                content[place] = weights


def outlets(header: Header, layer: int) -> list[Tensor]:
    """The tensors through which a layer adds to the residual stream: with zeros in them, it is as if left out."""
    own = (tensor for tensor in header.tensors if layer_of(tensor) == layer)
    return [tensor for tensor in own if _RESIDUAL.fullmatch(tensor.name.split(".", 2)[2])]
