"""What drafts an answer, and how much: drafters, draft lengths and other texts to draft from, kept between answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Drafter, LengthPolicy
from specdec_cli.draft_length import DraftForm, adaptive_length, cascade_length
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel, SharedLoad
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.draft_length.known_draft import KnownLength
from specdec_cli.draft_length.loss_budget import LossBudget
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.suffix_automaton import PromptCache
from specdec_cli.engine.contexts import Contexts, PairCosts
from specdec_cli.settings.settings import Settings
from specdec_cli.weights import tuning
from specdec_cli.weights.learned import Learning
from specdec_cli.weights.weights import Weights

_MAX_POLICIES = 64
_SPARE = 1024
"""Tokens of a prediction that may be left out by an answer."""
_MAX_CHARACTERS = 16  # of a token: what comes behind so many need not be tokenized


class Drafting:
    """The drafters and length policies of a session.

    A policy that adapts serves all answers with the same drafter and sampling, and so learns from one to the next.
    load: of the models, where other answers share their passes.
    """

    def __init__(self, weights: Weights, models: Contexts, costs: PairCosts, load: SharedLoad | None = None) -> None:
        self.learning = Learning(weights)
        self._load = load
        self._weights, self._models, self._costs = weights, models, costs
        self._prediction: tuple[str, Sequence[int]] = "", ()
        """The latest prediction, and its tokens."""
        self._prompts = PromptCache()
        self._policies: dict[tuple[Any, ...], tuple[LengthPolicy, CostModel | None]] = {}
        """By key, the latest used last. The costs are None if they hold only for this policy, as with trees."""
        self._shown: dict[tuple[Any, ...], tuple[Calibration, LossBudget]] = {}
        """By the same key, what a draft model has shown, whatever its passes cost now."""

    def policy(self, settings: Settings, prompt: Sequence[int]) -> LengthPolicy:
        if settings.length_policy is not None:
            return settings.length_policy
        if not settings.adapts:
            return self._fixed(settings)
        names = self._usable(settings)
        policies = {name: policy for name in names if (policy := self._adaptive(name, settings, prompt))}
        for policy, _ in self._policies.values():
            if type(policy) is KnownLength:  # the others needn't keep their texts
                policy.expect([*self._predicted(settings, 0), *prompt] if policy in policies.values() else ())
        all_adapt = policies and [*policies] == self._usable(settings)  # now without a draft model that can't be timed
        return cascade_length(policies) if all_adapt else self._fixed(settings)

    def drafter(self, settings: Settings, sampler: StandardSampler, seed: int, written: int = 0) -> Drafter:
        """What drafts, made anew for each answer. written: how many tokens of the answer the prompt has already."""
        models = self._models
        context = DrafterContext(
            model=models.draft.draft_model if models.draft else None,
            n_shared=self._weights.pair.n_shared,
            sampler=sampler,
            draws=settings.accept != "match",
            width=settings.tree,
            small=models.small.draft_model if models.small else None,
            lookahead=settings.lookahead_shape,
            corpus=self._weights.corpus,
            prediction=self._predicted(settings, written),
            prompts=self._prompts,
            translation=self._weights.translation,
        )
        names = self._usable(settings)
        # Each draws with its own generator, not with the target's, whose draws must not depend on the draft.
        rngs = [np.random.default_rng((seed, number)) for number in range(1, len(names) + 1)]
        return drafters.create_cascade(names, [replace(context, rng=rng) for rng in rngs])

    def _predicted(self, settings: Settings, written: int) -> Sequence[int]:
        """The tokens of a prediction, as far as an answer can follow it."""
        if not settings.prediction or not settings.cascade.reads_texts:
            return ()
        most = 2 * min(settings.max_tokens + written, self._models.target.open_kv.n_ctx) + _SPARE
        text = settings.prediction[: most * _MAX_CHARACTERS]
        if self._prediction[0] != text:  # the parts of a measurement, and turns of a chat, share it
            self._prediction = text, self._weights.target.model.tokenize(text, add_bos=False, special=False)
        return self._prediction[1][:most]

    def forget(self) -> None:
        """Drop all policies: the costs of passes have changed."""
        self._policies.clear()

    def learned_costs(self) -> Iterator[tuple[str, dict[int, float]]]:
        """Seconds of passes over n tokens, as the answers so far have shown them, each with the role of the model. What
        follows more passes comes later.
        """
        known = [(costs, name) for (name, *_), (_, costs) in self._policies.items() if costs and costs.seen]
        for costs, name in sorted(known, key=lambda each: each[0].seen):
            for role, seconds in costs.learned().items():
                if role == "target" or drafters.spec(name).needs_model:
                    yield role, seconds

    def _usable(self, settings: Settings) -> list[str]:
        """The drafters in the settings, without those whose draft model isn't open; the notes say why."""
        names = list(settings.cascade.names)
        if self._models.small is None or self._models.small.context is None:
            names = [name.removesuffix("<small") for name in names]
        return [name for name in names if self._models.drafts or not drafters.spec(name).needs_model]

    def _fixed(self, settings: Settings) -> LengthPolicy:
        tokens = settings.draft_tokens if isinstance(settings.draft_tokens, int) else 1
        key = (tokens, settings.draft_min_p, settings.drafter, settings.tree, settings.sampling_key)
        new = FixedLength(tokens, settings.draft_min_p, settings.temperature == 0, settings.cascade.looks_ahead)
        return self._known(key) or self._keep(key, new)

    def _known(self, key: tuple[Any, ...]) -> LengthPolicy | None:
        """The policy that was kept under a key; it becomes the latest used."""
        if kept := self._policies.pop(key, None):
            self._policies[key] = kept
        return kept and kept[0]

    def _keep(self, key: tuple[Any, ...], policy: LengthPolicy, costs: CostModel | None = None) -> LengthPolicy:
        """Keep a policy. If there are too many, as in a server, drop the one unused for longest."""
        self._policies[key] = policy, costs
        if len(self._policies) > _MAX_POLICIES:
            self._policies.pop(oldest := next(iter(self._policies)))
            self._shown.pop(oldest, None)
        return policy

    def _adaptive(self, name: str, settings: Settings, prompt: Sequence[int]) -> LengthPolicy | None:
        shape = (settings.drafter, settings.draft_min_p, settings.tree, settings.lookahead)
        predicted = bool(settings.prediction)
        key = (name, shape, settings.sampling_key, settings.accept, settings.bitwise, predicted)
        if known := self._known(key):
            return known
        try:
            measured = self._costs_of(name, settings, prompt)
        except SpecdecError as error:
            if self._models.draft and drafters.spec(name).needs_model:
                self._models.note(f"the draft model is not used: {error}")
                self._models.draft.close()
            else:
                self._models.note(f"the draft length does not adapt: {error}")
            return None
        form = drafters.form(name)
        longest = settings.lookahead_shape.tokens if form is DraftForm.WHOLE else form.longest
        longest = min(longest, LONGEST) if settings.bitwise else longest  # which longer passes agree isn't measured
        costs = CostModel(measured, min(self._models.target.open_kv.max_rows - 1, longest), self._load)
        plain = settings.tree == 1 and form is not DraftForm.WHOLE  # the passes of trees take longer
        calibration, budget = self._calibration(settings), form.budget(hopeful=predicted, plans=measured.singly)
        if form is DraftForm.GROWN:
            sampling = tuning.kind_of(settings.temperature == 0, settings.accept)
            kind = f"{name}, tree {settings.tree}, {sampling}"
            calibration, budget = self._shown.get(key) or self.learning.begin(kind, calibration, budget)
            self._shown[key] = calibration, budget
            if self._load:
                calibration = self._load.calibrations.setdefault(kind, calibration)
                self.learning.share(kind, calibration)
        prior, greedy = self._calibration(settings), settings.temperature == 0
        policy = adaptive_length(form, costs, calibration, budget, settings.draft_min_p, greedy, prior)
        return self._keep(key, policy, costs if plain and not settings.bitwise else None)

    def _calibration(self, settings: Settings) -> Calibration:
        """What the draft model's confidence is worth, as far as it is known before the first answer."""
        greedy = settings.temperature == 0
        known = self._models.tuning.calibrations if self._models.tuning else {}
        alike = [settings.accept, "rejection"] if settings.accept == "coupled" else [settings.accept]
        for rule in alike:  # `coupled` accepts nearly as much as `rejection`
            if calibration := known.get(tuning.kind_of(greedy, rule)):
                return copy.deepcopy(calibration)
        return Calibration.prior(greedy)

    def _costs_of(self, name: str, settings: Settings, text: Sequence[int]) -> Costs:
        """What drafting with a drafter costs, and verifying what it drafts, in the passes that `--bitwise` keeps to."""
        spec = drafters.spec(name)
        drafted = Curve({1: spec.token_s or 1e-6})
        costs = self._costs.of_pair(text) if spec.needs_model else Costs(self._costs.verify(text), drafted)
        if settings.bitwise:
            verify = self._costs.measure_agreement(text).cost(costs.verify, LONGEST + 1)
            return replace(costs, verify=verify, repeated=None)
        return costs if drafters.form(name) is DraftForm.GROWN and settings.tree == 1 else replace(costs, repeated=None)
