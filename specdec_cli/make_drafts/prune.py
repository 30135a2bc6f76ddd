"""`specdec draft prune`: copies the target with fewer layers, which are named or found by measured agreement.

llama.cpp's quantiser drops `blk.N.` tensors, renumbers the others and sets block_count; it copies everything else
unchanged. So anything that depends on a layer's number breaks: with an array of one value for each layer the file
doesn't load, and with layers that alternate or differ by position it loads and computes something else.

The search is greedy: it drops the layer whose removal costs the least agreement, again and again. Agreement is how
often the remaining layers predict the next token of the target's own greedy answers, from one pass over each answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header, Tensor, shown
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.make_drafts.draft_copy import (
    BLOCK,
    CopyJob,
    CopyOptions,
    DraftCopyResult,
    SearchStep,
    copy_job,
    ranges,
    require_room,
    tensors_of,
)
from specdec_cli.measure import suites
from specdec_cli.measure.acceptance_traces import before_a_loop
from specdec_cli.settings.settings import check_value
from specdec_cli.weights import prompt as prompt_text
from specdec_cli.weights.model_loading import load_model, load_tried

_ALIKE = {
    *("arcee", "bloom", "codeshell", "exaone", "falcon", "gemma", "glm4", "gpt2", "gptneox", "granite", "granitemoe"),
    *("hunyuan-dense", "internlm2", "llama", "mistral3", "nemotron", "olmo", "olmoe", "orion", "phi2", "phi3", "plm"),
    *("qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "refact", "seed_oss", "stablelm", "starcoder", "starcoder2"),
    "xverse",
}
"""Architectures whose layers don't depend on their number or their count, by src/models/*.cpp of the bundled llama.cpp.
(Not command-r, whose tensors depend on the count; not minicpm, which scales residuals by it; not those with sliding
windows, which alternate.)"""

_STATES = ("ssm.", "shortconv.", "wkv.")

_COPY_WHOLE = "Make a low-bit copy of it instead: specdec draft quantize."

_RESIDUAL = re.compile(r"blk\.\d+\.(attn_output|ffn_down(_exps|_shexp|\.\d+)?)\.(weight|bias)")
_PROMPTS = 8
_ANSWER = 48
_LONGEST_PROMPT = 256
_MIN_TOKENS = 64
"""Agreement over fewer tokens says nothing."""
_TRIED = 6
"""Layers to try for each one dropped after the first: those that cost the least when last tried. Trying all would take
quadratic time."""


@dataclass(frozen=True, slots=True)
class LayerSearch:
    """A search for `keep` layers. prompts: a suite or a file of prompts; None: the suite `python`."""

    keep: int
    prompts: str | None = None
    gpu_layers: int = -1

    def __post_init__(self) -> None:
        check_value("gpu_layers", self.gpu_layers)


def prune(options: CopyOptions, layers: str | LayerSearch, remember: bool = True) -> DraftCopyResult:
    """Copy a target with fewer layers. layers: those to keep, such as `0-7,31`. remember: for `--drafter self`.

    Raises UsageError or SpecdecError if that can't be done, DownloadError if the target isn't downloaded, Interrupted.
    """
    with copy_job(options) as job:
        count = require_prunable(job.header)
        if isinstance(layers, str):
            kept = layers_of(layers, count)
            require_room(options.out.parent, size_with(job.header, kept, count))
            return job.finish(kept, search=(), remember=remember)
        if not 1 <= layers.keep < count:
            raise UsageError(f"--search can't keep {layers.keep} of {count} layers", f"Give 1 to {count - 1}.")
        require_room(options.out.parent, job.header.size)
        steps = tuple(_search(job, layers, count))
        return job.finish(steps[-1].layers, search=steps, remember=remember)


def _search(job: CopyJob, wanted: LayerSearch, count: int) -> list[SearchStep]:
    """Drop one of `count` layers at a time from a copy, until as many are left as are wanted."""
    answers = _Answers(job, wanted)
    path, progress = job.folder / "whole.gguf", job.options.progress
    job.write(path.name)
    copy = SkippableCopy(path, count)
    started = perf_counter()
    steps = [SearchStep(tuple(range(count)), None, answers.agreement(path, load_model))]
    trials = 1 + count + sum(min(_TRIED, left) for left in range(wanted.keep + 1, count))
    seconds = trials * (perf_counter() - started)
    progress.searching(count, wanted.keep, len(answers.texts), answers.n_tokens, trials, seconds)
    when_dropped = dict.fromkeys(range(count), 1.0)  # agreement without each layer, when last tried
    while True:
        kept = steps[-1].layers
        progress.dropped(steps[-1], ranges(kept), size_with(job.header, kept, count))
        if len(kept) == wanted.keep:
            path.unlink()
            return steps
        tried = sorted(kept, key=lambda layer: -when_dropped[layer])[: None if len(kept) == count else _TRIED]
        for layer in tried:
            with copy.without(layer):
                when_dropped[layer] = answers.agreement(path)
        cheapest = max(tried, key=lambda layer: when_dropped[layer])
        copy.drop(cheapest)
        kept = tuple(layer for layer in kept if layer != cheapest)
        steps.append(SearchStep(kept, cheapest, when_dropped.pop(cheapest)))


def require_prunable(header: Header) -> int:
    """How many layers a model has. Raises SpecdecError if it doesn't work without some of them."""
    layers = header.setting("block_count")
    if type(layers) is not int or layers < 2:
        raise SpecdecError(f"{header.name} has {shown(layers)} layers, so none can be left out", _COPY_WHOLE)
    if why := _difference(header, layers):
        raise SpecdecError(f"layers of {header.name} can't be left out: {why}", _COPY_WHOLE)
    return layers


def _difference(header: Header, layers: int) -> str:
    """Why the layers of this model depend on their numbers; empty if they don't."""
    prefix = f"{header.architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    if any(key.startswith(_STATES) for key in own):
        return "some or all of them keep a state, and their numbers decide which"
    if own.get("nextn_predict_layers"):
        return "the last of them predict tokens further ahead"
    if arrays := [key for key, value in own.items() if isinstance(value, np.ndarray) and value.size == layers]:
        return f"{shown(arrays[0])} has a value for each layer, which llama.cpp wouldn't change"
    if own.get("attention.sliding_window") and header.architecture not in _ALIKE:
        return "their numbers decide which of them have a sliding window"
    if own.get("leading_dense_block_count"):
        return "the first of them are of a different kind"
    if header.architecture not in _ALIKE:
        return f"in {shown(header.architecture)} models they may depend on their numbers"
    parts: dict[int, list[tuple[str, tuple[int, ...]]]] = {}  # of each layer: the names and shapes of its tensors
    for tensor in header.tensors:
        if match := BLOCK.fullmatch(tensor.name):
            parts.setdefault(int(match[1]), []).append((match[2], tensor.shape))
    if sorted(parts) != list(range(layers)):
        return f"it has tensors for {len(parts):,} layers, not {layers:,}"
    odd = next((number for number in parts if sorted(parts[number]) != sorted(parts[0])), None)
    return f"layer {odd} has other tensors than layer 0" if odd else ""


def layers_of(text: str, count: int) -> tuple[int, ...]:
    """The layers in a text such as `0-7,31`, of `count`. Raises UsageError if it names none or all."""
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
        if match is None:
            raise UsageError(f"{text!r} isn't a list of layers: {part!r}", "Write numbers and ranges: 0-7,31.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"the range {part.strip()!r} of layers goes backwards", f"Write {last}-{first}.")
        if last >= count:
            raise UsageError(f"there is no layer {last}: the model has {count}", f"Its layers are 0 to {count - 1}.")
        layers.update(range(first, last + 1))
    if len(layers) == count:
        what = f"that keeps all {count} layers, so the copy would be the target"
        raise UsageError(what, "Name fewer with --keep-layers.")
    return tuple(sorted(layers))


def size_with(header: Header, kept: Iterable[int], count: int) -> int:
    """Bytes of a copy with these of `count` layers."""
    return header.size - sum(tensor.size or 0 for tensor in tensors_of(header, set(range(count)) - set(kept)))


class _Answers:
    """The target's own greedy answers. Raises SpecdecError if they're too short to measure agreement."""

    def __init__(self, job: CopyJob, wanted: LayerSearch) -> None:
        self._job, self._placement = job, Placement(wanted.gpu_layers)
        self.texts: list[tuple[list[int], list[int]]] = []  # the tokens of each prompt and of its answer
        prompts = suites.select(suites.load(wanted.prompts or "python"), limit=_PROMPTS)
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
                f"the target's answers have {self.n_tokens} tokens in all, too few to choose layers",
                f"Use other --prompts: of up to {longest} tokens, with answers longer than a word.",
            )

    def agreement(self, path: Path, load: Callable[..., Model] = load_tried) -> float:
        """How often a model predicts the target's next token. load: `load_model` for a new file."""
        agreed = 0
        with (
            closing(load(path, self._placement, self._job.options.interrupt)) as model,
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
    """The greedy answer to a prompt, up to the point where it starts to repeat itself."""
    context.rewind(0)
    answer = [int(context.decode(prompt)[0].argmax())]
    while len(answer) < _ANSWER and not model.is_end(answer[-1]):
        answer.append(int(context.decode(answer[-1:])[0].argmax()))
    return answer[: before_a_loop(answer)]


class SkippableCopy:
    """A model's file in which zeroed output tensors switch layers off. No model may be loaded from it when a layer is
    switched on or off.

    Zero bytes are zeros in every type of ggml, because they zero each block's scale.
    """

    def __init__(self, path: Path, layers: int) -> None:
        self.path = path
        self._places: list[list[slice]] = []  # of each layer: the places of its output tensors
        header = read_header(path)
        for layer in range(layers):
            tensors = outlets(header, layer)
            parts = {tensor.name.partition("_")[0] for tensor in tensors}  # attention and feed-forward
            if len(parts) != 2 or any(tensor.size is None for tensor in tensors):
                what = f"the layers of a {shown(header.architecture)} model can't be tried one by one"
                raise SpecdecError(what, "Choose them yourself: --keep-layers.")
            starts = [header.data_offset + tensor.offset for tensor in tensors]
            self._places.append([slice(at, at + (each.size or 0)) for at, each in zip(starts, tensors, strict=True)])

    def drop(self, layer: int) -> None:
        """Switch a layer off permanently."""
        content = np.memmap(self.path, mode="r+")
        for place in self._places[layer]:
            content[place] = 0

    @contextmanager
    def without(self, layer: int) -> Iterator[None]:
        """Switch a layer off temporarily."""
        content = np.memmap(self.path, mode="r+")
        saved = [content[place].copy() for place in self._places[layer]]
        self.drop(layer)
        try:
            yield
        finally:
            for place, weights in zip(self._places[layer], saved, strict=True):
                content[place] = weights


def outlets(header: Header, layer: int) -> list[Tensor]:
    """The tensors through which a layer adds to the residual stream. Zeros in them switch the layer off."""
    return [tensor for tensor in tensors_of(header, [layer]) if _RESIDUAL.fullmatch(tensor.name)]
