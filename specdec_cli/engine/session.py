"""A pair of models, checked, loaded and ready to run prompts. What `run` uses, and whatever else runs a pair."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from specdec_cli import drafters
from specdec_cli.decoding import rules
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.divergence import Choice, Divergence, Transcript, explain, first_difference
from specdec_cli.decoding.length_policy import LengthPolicy
from specdec_cli.decoding.loop import Ending, generate
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import Drafter, Event
from specdec_cli.draft_length import LONGEST, DraftForm, adaptive_length, chain_length
from specdec_cli.draft_length.calibration import Calibration
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.engine import validation as terms
from specdec_cli.engine.loaded import LoadedPair
from specdec_cli.engine.settings import AUTO, Settings
from specdec_cli.engine.validation import fixed_length, sampling_of
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.store import tuning

_Made = TypeVar("_Made")


class Session(LoadedPair):
    """A pair that answers prompts: drafters, draft lengths and rules by settings, remembered from answer to answer."""

    @property
    def drafts(self) -> bool:
        """Whether the draft model that the settings ask for, if any, is there."""
        return self._draft_context is not None or not drafters.needs_model(self.settings.drafter)

    def events(
        self, prompt: Sequence[int], seed: int, stop: Sequence[str] = (), settings: Settings | None = None
    ) -> Iterator[Event]:
        """Decode an answer with the session's settings, or with others that need no other models or contexts."""
        settings = settings or self.settings
        sampler = rules.sampler_of(settings.accept, sampling_of(settings), seed)
        policy = self._length_policy(settings, prompt)
        return generate(
            prompt,
            LlamaTarget(self._opened, self.agree(prompt)),
            self._drafter(sampler, seed, settings),
            policy,
            rules.RULES[settings.accept],
            sampler,
            np.random.default_rng(seed),
            TextStream(self.target.piece, stop),
            Ending(settings.max_tokens, self.target.is_end, self._interrupt.is_set),
            self.clock,
        )

    def divergence(
        self, prompt: Sequence[int], own: Transcript, mine: Transcript, seed: int, settings: Settings
    ) -> Divergence | None:
        """Where an answer leaves the target's own, and the proof that this is rounding, or that it is not; None if it
        does not. For reproducible rules, and greedily for all. It takes the passes of both answers up to that place.
        """
        position = first_difference(mine.tokens, own.tokens)
        if position is None:
            return None
        text = [*prompt, *own.tokens[:position]]
        sampler = rules.sampler_of(settings.accept, sampling_of(settings), seed)
        sampler.watch(text)
        choice = Choice(sampler, position, len(text), seed)
        context, threads, watch = self._opened, self._opened.threads, self._opened.on_pass

        def again(transcript: Transcript) -> LlamaTarget:
            """A target that computes with the threads of an answer, and changes them where that did."""

            def change(_tokens: int, _seconds: float) -> None:
                for length, count in transcript.threads[1:]:
                    if length == context.length:
                        context.set_threads(count)

            context.on_pass = change
            context.set_threads(transcript.threads[0][1] if transcript.threads else threads)
            return LlamaTarget(context, self.agreement if settings.bitwise else None)

        try:
            experts = bool(self.pair.target.setting("expert_count"))
            found = explain(prompt, own, mine, position, choice, again, experts)
        finally:
            context.on_pass = watch
            context.set_threads(threads)
        if settings.bitwise and not found.bug:
            found = replace(found, bug=f"passes that agreed bit for bit when measured do not here: {found}")
        return found

    def _length_policy(self, settings: Settings, prompt: Sequence[int]) -> LengthPolicy:
        """What decides the draft length. One that adapts serves all runs with the same sampling, and remembers."""
        if settings.draft_tokens != AUTO or settings.drafter == "none":
            key = (settings.draft_tokens, settings.draft_min_p, settings.drafter, settings.tree, sampling_of(settings))
            return self._fixed.setdefault(key, fixed_length(settings))
        found = {name: self._auto(name, settings, prompt) for name in self._usable(settings)}
        policies = {name: policy for name, policy in found.items() if policy}
        if not policies or len(policies) < len(found):
            return fixed_length(settings)
        return chain_length(policies)

    def _usable(self, settings: Settings) -> list[str]:
        """The drafters asked for, without those whose draft model could not be had; the notes say why."""
        names = drafters.split(settings.drafter)
        if self._small_context is None:
            names = [name.removesuffix("<small") for name in names]
        return [name for name in names if self._draft_context is not None or not drafters.spec(name).needs_model]

    def _auto(self, name: str, settings: Settings, prompt: Sequence[int]) -> LengthPolicy | None:
        """The adaptive length of one drafter with these settings; None if its costs cannot be measured."""
        kind = drafters.spec(name)
        shape = (settings.drafter, settings.draft_min_p, settings.tree, settings.lookahead)
        key = (name, shape, sampling_of(settings), settings.accept)
        if key not in self._adaptive:
            measured = self._unless_it_fails(lambda: self._costs_of(kind, prompt))
            if measured is None:  # without costs there is no adapting, and the draft model does not work
                self._draft_context = None
                return None
            form = drafters.form(name)
            longest = terms.lookahead_size(settings) if form is DraftForm.WHOLE else LONGEST
            costs = CostModel(measured, min(self._opened.max_rows - 1, longest))
            if settings.tree == 1 and form is not DraftForm.WHOLE:  # the passes of trees take longer
                self._learned.append(costs)
            greedy, min_p = settings.temp == 0, settings.draft_min_p
            self._adaptive[key] = adaptive_length(form, costs, self._calibration(settings), min_p, greedy)
        return self._adaptive[key]

    def _calibration(self, settings: Settings) -> Calibration:
        """What the draft model's confidence is worth, as far as it is known before the first answer."""
        greedy = settings.temp == 0
        known = self._tuned.calibrations if self._tuned else {}
        found = known.get(tuning.kind_of(greedy, settings.accept))
        if found is None and settings.accept == "coupled":  # which accepts nearly as much
            found = known.get(tuning.kind_of(greedy, "rejection"))
        return copy.deepcopy(found) if found else Calibration.prior(greedy)

    def _costs_of(self, kind: type[drafters.DrafterSpec], text: Sequence[int]) -> Costs:
        """What drafting with a drafter costs, and verifying what it drafts, in the passes that `--bitwise` keeps to."""
        if kind.needs_model:
            costs = self.costs(text)
        else:
            costs = Costs(self._pass_costs["target"].verify(text), Curve({1: kind.token_s}))
        agreement = self.agree(text)
        return replace(costs, verify=agreement.cost(costs.verify, LONGEST + 1)) if agreement else costs

    def _drafter(self, sampler: StandardSampler, seed: int, settings: Settings) -> Drafter:
        context = DrafterContext(
            self._draft_context,
            self.pair.n_shared,
            sampler,
            settings.accept != "match",
            np.random.default_rng(seed),
            settings.tree,
            self._small_context,
            terms.lookahead_of(settings),
            self.corpus,
        )
        return drafters.create_all(self._usable(settings), context, seed)
