"""The weights of a pair, loaded once and shared by all sessions: the target and its draft models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.drafters import corpus
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.translation import Translation, Writer
from specdec_cli.gguf.header import Header
from specdec_cli.llama import host, kernels, library, placing
from specdec_cli.llama.adapter import Adapter
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.placement import Placement
from specdec_cli.settings.settings import Settings
from specdec_cli.weights import tuning
from specdec_cli.weights.model_loading import load_model, load_tried, require_heads
from specdec_cli.weights.model_pair import ModelPair, setup_of, setup_of_pair
from specdec_cli.weights.prompt import Prompt, TokenizedPrompt, tokenize
from specdec_cli.weights.tuning import Tuning


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """role: target, draft or small draft. threads: CPU threads to start with. head: the kind of heads, if any."""

    role: str
    path: Path
    header: Header
    model: Model
    threads: int
    placement: Placement
    adapters: tuple[Adapter, ...] = ()
    head: str = ""

    @property
    def offloaded(self) -> int:
        """How many layers are on a GPU or on other machines; -1: all."""
        away = self.placement.on_devices and (self.placement.is_remote or library.supports_gpu())
        return self.placement.layers if away else 0

    @property
    def setup(self) -> str:
        """A key for the head, devices and adapters; empty for a model on the default devices without adapters."""
        return " ".join(filter(None, (self.head, setup_of((self.placement,), self.adapters))))

    def window(self, n_ctx: int, asked: int | None) -> int:
        """The tokens that a draft model holds of a text of up to n_ctx. asked: the value of --draft-window."""
        return min(n_ctx, self.model.n_ctx_train or n_ctx, asked or n_ctx)


class Weights:
    """The models of a pair in memory. tune: whether to use the results of `specdec tune` on this machine. variants:
    other settings that answers will use.

    If a draft model fails to load, the target runs without it, and `notes` says why.
    """

    def __init__(
        self,
        pair: ModelPair,
        settings: Settings,
        interrupt: Interrupt,
        tune: bool = True,
        variants: Sequence[Settings] = (),
    ) -> None:
        for variant in variants:
            pair.require_translation(variant)
        self.pair, self.settings, self.tunes = pair, settings, tune
        self.load_s = 0.0
        """Seconds that loading took, including the index of --ngram-corpus."""
        self.notes: list[str] = []
        reads_texts = settings.ngram_corpus and any(variant.cascade.reads_texts for variant in variants or [settings])
        self._corpus_files = corpus.find(settings.ngram_corpus) if reads_texts else []
        self._reading = Lock()
        self.corpus: Corpus | None = None
        """Other texts to draft from; see `read_corpus`."""
        self.tuning = tuned = _find_tuning(pair, settings, self.notes) if tune else None
        threads = settings.threads or (tuned.threads if tuned else host.physical_cores())
        threads_draft = settings.threads_draft or (tuned.threads_draft if tuned and not settings.threads else threads)
        threads, threads_draft = (_limited(count, self.note) for count in (threads, threads_draft))
        layers = tuned.gpu_layers_draft if tuned and settings.gpu_layers_draft == -1 else settings.gpu_layers_draft
        self.tuned_costs: Costs | None = None
        if tuned and (tuned.threads, tuned.threads_draft, tuned.gpu_layers_draft) == (threads, threads_draft, layers):
            self.tuned_costs = tuned.costs
        place, place_draft = settings.placements
        place_draft = replace(place_draft, layers=layers)
        for each in (place, place_draft):
            placing.require_possible(each)
        usable = self._can_use_heads(place, interrupt)
        with_heads = usable and bool(settings.cascade.head) and pair.draft_path == pair.target_path
        model = load_model(pair.target_path, place, interrupt, pair.adapters, with_heads)
        self.target = LoadedModel("target", pair.target_path, pair.target, model, threads, place, pair.adapters)
        self.draft: LoadedModel | None = None
        self.small: LoadedModel | None = None
        try:
            self.draft = self._load_draft(threads_draft, place_draft, interrupt) if usable else None
            self.small = self._load("small draft", pair.small_path, pair.small, threads_draft, place_draft, interrupt)
        except BaseException:
            self.close()
            raise
        if (kernels_here := kernels.verdict()).fault:
            self.note(str(kernels_here))
        if unused := _unused_layers(settings, has_draft=self.draft is not None):
            self.note(unused)
        trained = model.n_ctx_train
        if settings.ctx and 0 < trained < settings.ctx:
            self.note(f"-c {settings.ctx:,} is more than the {trained:,} tokens that the target was trained on")

    def _can_use_heads(self, place: Placement, interrupt: Interrupt) -> bool:
        """Whether the heads in the settings, if any, can draft here. If not, a note says why."""
        head, pair = self.settings.cascade.head, self.pair
        if head in ("", "medusa"):  # specdec itself computes Medusa's heads
            return True
        with self.optional("draft"):
            if pair.draft_path == pair.target_path and place.is_remote:
                what = "with --rpc, the next-token layers of the target's own file are on the servers"
                raise SpecdecError(what, "Use another draft: -md, or --drafter ngram.")
            require_heads(pair.target_path, pair.draft_path or pair.target_path, interrupt)
            return True
        return False

    def _load_draft(self, threads: int, placement: Placement, interrupt: Interrupt) -> LoadedModel | None:
        head, pair, target = self.settings.cascade.head, self.pair, self.target
        if head and pair.draft_path == pair.target_path:
            return replace(target, role="draft", threads=threads, head=head)
        if head == "medusa" and pair.draft_path and pair.draft:  # its file is read when a context opens
            place = replace(target.placement, servers=())
            return LoadedModel("draft", pair.draft_path, pair.draft, target.model, threads, place, head=head)
        adapters = pair.draft_adapters
        return self._load("draft", pair.draft_path, pair.draft, threads, placement, interrupt, adapters, head)

    def _load(
        self,
        role: str,
        path: Path | None,
        header: Header | None,
        threads: int,
        placement: Placement,
        interrupt: Interrupt,
        adapters: tuple[Adapter, ...] = (),
        head: str = "",
    ) -> LoadedModel | None:
        if path and header:
            with self.optional(role):
                devices = placing.whole(placement)
                if head == "eagle3" and "output.weight" not in header.by_name:  # then it uses the target's matrix
                    devices = self.target.placement
                at = path, devices, interrupt
                model = load_tried(*at, heads=True) if head else load_model(*at, adapters)
                return LoadedModel(role, path, header, model, threads, devices, adapters, head)
        return None

    @contextmanager
    def optional(self, role: str) -> Iterator[None]:
        """Turn a SpecdecError in this block, about a draft model, into a note."""
        try:
            yield
        except SpecdecError as error:
            self.note(f"the {'second ' if role == 'small draft' else ''}draft model is not used: {error}")

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def translation(self) -> Translation | None:
        """Translates between the tokenizers of the pair; None if they are the same."""
        overlap, draft = self.pair.overlap, self.draft
        if overlap is None or draft is None:
            return None
        writers = Writer(self.target.model, overlap.target), Writer(draft.model, overlap.draft)
        return Translation(*writers, overlap.to_target)

    def tokenize(
        self,
        prompt: Prompt,
        system: str | None,
        raw: bool,
        stopped: Callable[[], bool] = lambda: False,
        variables: Mapping[str, Any] | None = None,
    ) -> TokenizedPrompt:
        """Like `prompt.tokenize`, with the target's tokenizer and template, and by default the settings' variables."""
        variables = self.settings.template_variables if variables is None else variables
        return tokenize(prompt, self.target.model, self.pair.target, system, raw, stopped, variables)

    def read_corpus(self, interrupt: Interrupt, progress: corpus.Progress = lambda _: None) -> None:
        """Index the texts of --ngram-corpus, or read the saved index, once.

        progress: called with a description of the current work. Raises UsageError if there is no text, Interrupted on
        Ctrl-C.
        """
        with self._reading:
            if files := self._corpus_files:
                started, target, names = perf_counter(), self.target, self.settings.ngram_corpus
                stopped = interrupt.is_set
                self.corpus = corpus.read(names, files, target.header, target.model, stopped, progress, self.note)
                self._corpus_files = []
                self.load_s += perf_counter() - started

    def close(self) -> None:
        for loaded in filter(None, (self.small, self.draft, self.target)):
            loaded.model.close()


def _limited(threads: int, note: Callable[[str], None]) -> int:
    """Limit the threads to what the machine runs at once: more wait for each other, and thousands crash the process."""
    most = host.processors()
    if threads > most:
        note(f"this machine runs {most} threads at once: using {most} instead of {threads:,}")
    return min(threads, most)


def _unused_layers(settings: Settings, has_draft: bool) -> str:
    """A note if the settings ask for GPU layers that llama.cpp can't use here; empty otherwise."""
    if settings.rpc and settings.gpu_layers == 0:
        return "--rpc does nothing: -ngl 0 keeps all layers on this machine"
    asked = {"-ngl": 0 if settings.rpc else settings.gpu_layers, "-ngld": settings.gpu_layers_draft if has_draft else 0}
    flags = [f"{flag} {layers}" for flag, layers in asked.items() if layers > 0]
    if not flags or library.supports_gpu():
        return ""
    verb = "does" if len(flags) == 1 else "do"
    return f"{' and '.join(flags)} {verb} nothing: llama.cpp finds no GPU here (see specdec doctor)"


def _find_tuning(pair: ModelPair, settings: Settings, notes: list[str]) -> Tuning | None:
    """The results of `specdec tune` for this pair on this machine, if there are any."""
    try:
        setup = setup_of_pair(pair, settings)
        tuned = tuning.load(pair.target_path, pair.draft_path, setup) if pair.draft_path else None
    except SpecdecError as error:
        notes.append(f"the results of specdec tune are not used: {error}")
        return None
    return tuned if tuned and (tuned.machine, tuned.gpu_layers) == (library.machine(), settings.gpu_layers) else None
