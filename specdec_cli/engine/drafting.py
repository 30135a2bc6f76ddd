"""What drafts an answer, and how much: drafters, draft lengths and other texts to draft from, kept between answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from time import perf_counter

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Drafter, LengthPolicy
from specdec_cli.draft_length import DraftForm, SharedLoad, adaptive_length, chain_length, fixed_length
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.drafters.corpus_index import Corpus, join, sort
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.translation import Translation, Writer
from specdec_cli.engine import corpora, corpus_files, tuning
from specdec_cli.engine.config import Settings
from specdec_cli.engine.corpus_files import Source
from specdec_cli.engine.loaded_models import LoadedModels
from specdec_cli.engine.model_pair import ModelPair
from specdec_cli.engine.pass_costs import PairCosts
from specdec_cli.llama.model import Model

_REPORT_EVERY_S = 0.1
_PIECE = 1 << 18  # characters
_MOST_POLICIES = 64

Progress = Callable[[str], None]
"""Called with what is being done."""


class Drafting:
    """The drafters and length policies of a pair in memory. corpus: other texts for drafters that look into them.

    A policy that adapts serves all answers with the same drafter and sampling, and so learns from one to the next.
    load: of the models, where other answers share their passes.
    """

    def __init__(self, models: LoadedModels, costs: PairCosts, pair: ModelPair, load: SharedLoad | None = None) -> None:
        self.corpus: Corpus | None = None
        self._load = load
        self._models, self._costs, self._n_shared = models, costs, pair.n_shared
        self._pair = pair
        self._policies: dict[object, tuple[LengthPolicy, CostModel | None]] = {}
        """By what they depend on, the latest used last; with costs, where what they learn is true of other answers."""

    @cached_property
    def translation(self) -> Translation | None:
        """Between the tokenizers of the pair, if they are not the same; slots share it."""
        overlap, draft = self._pair.overlap, self._models.draft
        if overlap is None or draft is None:
            return None
        writers = Writer(self._models.target.model, overlap.target), Writer(draft.model, overlap.draft)
        return Translation(*writers, overlap.to_target)

    def policy(self, settings: Settings, prompt: Sequence[int]) -> LengthPolicy:
        if not settings.adapts:
            return self._fixed(settings)
        names = self._usable(settings)
        policies = {name: policy for name in names if (policy := self._adaptive(name, settings, prompt))}
        return chain_length(policies) if policies and len(policies) == len(names) else self._fixed(settings)

    def drafter(self, settings: Settings, sampler: StandardSampler, seed: int) -> Drafter:
        """What drafts, made anew for each answer."""
        models = self._models
        context = DrafterContext(
            model=models.draft.drafting if models.draft else None,
            n_vocab=self._n_shared,
            sampler=sampler,
            draws=settings.accept != "match",
            rng=np.random.default_rng(seed),
            width=settings.tree,
            small=models.small.drafting if models.small else None,
            lookahead=astuple(settings.lookahead_shape),
            corpus=self.corpus,
            translation=self.translation,
        )
        return drafters.create_all(self._usable(settings), context, seed)

    def forget(self) -> None:
        """Passes cost something else from now on: nothing that was learned of them is true."""
        self._policies.clear()

    def learned_costs(self) -> list[dict[int, float]]:
        """Seconds to verify n tokens, as the answers so far have shown them."""
        return [costs.learned() for _, costs in self._policies.values() if costs]

    def _usable(self, settings: Settings) -> list[str]:
        """The drafters asked for, without those whose draft model could not be had; the notes say why."""
        names = list(settings.chain.names)
        if self._models.small is None or self._models.small.context is None:
            names = [name.removesuffix("<small") for name in names]
        return [name for name in names if self._models.drafts or not drafters.spec(name).needs_model]

    def _fixed(self, settings: Settings) -> LengthPolicy:
        tokens = settings.draft_tokens if isinstance(settings.draft_tokens, int) else 1
        key = (tokens, settings.draft_min_p, settings.drafter, settings.tree, settings.sampling)
        known = self._known(key)
        return known or self._keep(
            key, fixed_length(tokens, settings.draft_min_p, settings.temp == 0, settings.chain.looks_ahead)
        )

    def _known(self, key: object) -> LengthPolicy | None:
        """The policy that was kept, now the one that was used last."""
        if key not in self._policies:
            return None
        self._policies[key] = kept = self._policies.pop(key)
        return kept[0]

    def _keep(self, key: object, policy: LengthPolicy, costs: CostModel | None = None) -> LengthPolicy:
        """Keep a policy, and forget the one that was not used for longest: a server is asked for many."""
        self._policies[key] = policy, costs
        if len(self._policies) > _MOST_POLICIES:
            self._policies.pop(next(iter(self._policies)))
        return policy

    def _adaptive(self, name: str, settings: Settings, prompt: Sequence[int]) -> LengthPolicy | None:
        shape = (settings.drafter, settings.draft_min_p, settings.tree, settings.lookahead)
        key = (name, shape, settings.sampling, settings.accept, settings.bitwise)
        if known := self._known(key):
            return known
        try:
            measured = self._costs_of(name, settings, prompt)
        except SpecdecError as error:  # without costs there is no adapting, and the draft model does not work
            self._models.note(f"the draft model is not used: {error}")
            if self._models.draft:
                self._models.draft.close_context()
            return None
        form = drafters.form(name)
        longest = settings.lookahead_shape.tokens if form is DraftForm.WHOLE else LONGEST
        costs = CostModel(measured, min(self._models.target.opened.max_rows - 1, longest), self._load)
        plain = settings.tree == 1 and form is not DraftForm.WHOLE  # the passes of trees take longer
        calibration = self._calibration(settings)
        if self._load:
            calibration = self._load.calibrations.setdefault(key, calibration)
        policy = adaptive_length(form, costs, calibration, settings.draft_min_p, greedy=settings.temp == 0)
        return self._keep(key, policy, costs if plain and not settings.bitwise else None)

    def _calibration(self, settings: Settings) -> Calibration:
        """What the draft model's confidence is worth, as far as it is known before the first answer."""
        greedy = settings.temp == 0
        known = self._models.tuning.calibrations if self._models.tuning else {}
        alike = [settings.accept, "rejection"] if settings.accept == "coupled" else [settings.accept]
        for rule in alike:  # `coupled` accepts nearly as much as `rejection`
            if calibration := known.get(tuning.kind_of(greedy, rule)):
                return copy.deepcopy(calibration)
        return Calibration.prior(greedy)

    def _costs_of(self, name: str, settings: Settings, text: Sequence[int]) -> Costs:
        """What drafting with a drafter costs, and verifying what it drafts, in the passes that `--bitwise` keeps to."""
        spec = drafters.spec(name)
        drafted = Curve({1: spec.token_s})
        costs = self._costs.of_pair(text) if spec.needs_model else Costs(self._costs.verify(text), drafted)
        if settings.bitwise:
            return replace(costs, verify=self._costs.agree(text).cost(costs.verify, LONGEST + 1))
        return costs


def read_corpus(
    settings: Settings, files: Sequence[Source], models: LoadedModels, stopped: Callable[[], bool], progress: Progress
) -> Corpus:
    """The index of these texts: the one kept, or else made now and kept.

    Raises UsageError if there is no text in them, Interrupted once `stopped` says so.
    """
    names, target = settings.ngram_corpus, models.target
    path = corpora.path_of(target.header, names, files)
    if (kept := corpora.load(path)) is not None:
        return Corpus(*kept)
    index = _index(names, files, target.model, stopped, progress)
    try:
        corpora.save(path, index)
    except SpecdecError as error:
        models.note(f"the index of the corpus is not kept: {error}")
    return Corpus(*index)


def _index(
    names: Sequence[str], files: Sequence[Source], model: Model, stopped: Callable[[], bool], progress: Progress
) -> corpora.Index:
    def check() -> None:
        if stopped():
            raise Interrupted

    texts: list[Sequence[int]] = []
    reported = perf_counter()
    for number, file in enumerate(files):
        check()
        if perf_counter() - reported > _REPORT_EVERY_S:
            reported = perf_counter()
            progress(f"reading the corpus, file {number:,} of {len(files):,}")
        tokens: list[int] = []
        for piece in _pieces(corpus_files.read(file) or ""):
            check()
            tokens += model.tokenize(piece, add_bos=False, special=False)
        texts += [tokens] if tokens else []
    joined = join(texts)
    progress(f"sorting the corpus, {len(joined):,} tokens")
    order = sort(joined, check)
    if not len(order):
        raise UsageError(f"there is no text in the corpus {', '.join(names)}", "Name files or folders of text.")
    return joined.data, order.data


def _pieces(text: str) -> Iterator[str]:
    """A text cut at ends of lines, where it is long: one call of llama.cpp cannot be interrupted."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1
        yield text[start : end or None]
        start = end or len(text)
