"""A comparison: which trials of which variants run in which order, and what is done with the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import date
from itertools import product

from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.engine import proof
from specdec_cli.engine.comparison_summary import differing, result_of
from specdec_cli.engine.config import Settings
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.model_pair import ModelPair
from specdec_cli.engine.suite_prompts import fitting
from specdec_cli.engine.variants import Variant
from specdec_cli.evaluation.comparison_result import ComparisonResult, DivergentAnswer
from specdec_cli.evaluation.trials import Trial, trial_of
from specdec_cli.models.suites import Prompt
from specdec_cli.store import tuning

_WARM_UP_TOKENS = 16
_LEAST_ROOM = 16
"""Tokens that an answer must have room for, or its prompt is skipped as too long."""

Update = Callable[[Sequence[Trial], int], None]
"""Called after each trial with the trials so far and how many there will be."""


class ComparisonRun:
    """Runs variants on prompts with one loaded pair. rounds: per prompt; one does not show the machine's noise."""

    def __init__(self, settings: Settings, variants: Sequence[Variant], rounds: int = 2) -> None:
        if rounds < 1:
            raise UsageError(f"repeat cannot be {rounds}", "Give 1 or more; with 1 the machine's noise stays unknown.")
        self.error: SpecdecError | None = None
        """What stopped the run after some trials."""
        self.variants = {variant.name: variant for variant in variants}
        self._settings, self._seed, self._rounds = settings, settings.seed or 0, rounds
        self._trials: list[Trial] = []
        self._transcripts: list[Transcript] = []

    @property
    def loaded(self) -> Settings:
        """Settings that load whatever any variant needs: the draft if one uses it, and the second one likewise."""
        needy = [way for way in self.ways if way.chain.needs_model]
        most = max(needy, key=lambda way: way.chain.needs_small, default=replace(self._settings, drafter="none"))
        return replace(self._settings, drafter=most.drafter, draft=most.draft)

    @property
    def baselines(self) -> dict[str, str]:
        return {name: variant.baseline for name, variant in self.variants.items()}

    @property
    def ways(self) -> list[Settings]:
        """The settings that draft."""
        return [variant.settings for variant in self.variants.values() if variant.settings.drafter != "none"]

    def run(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        system: str | None = None,
        raw: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        update: Update = lambda _, __: None,
    ) -> ComparisonResult:
        """Run every variant on every prompt, each round in the opposite order. The engine has opened no contexts yet.

        After an interrupt or an error the result is partial; if there is no trial yet, it is raised.
        """
        room = self._settings.ctx or engine.models.target.model.n_ctx_train or sys.maxsize
        chosen = fitting(engine, prompts, room - _LEAST_ROOM, system, raw)
        if not chosen:
            raise SpecdecError(
                f"all {len(prompts)} prompts are too long for a context of {room:,} tokens",
                "Give shorter prompts or a larger context (-c).",
            )
        engine.open(max(map(len, chosen.values())), self.ways or [self._settings.alone()])
        if not engine.drafts:
            raise SpecdecError(engine.notes[-1], "There is nothing to compare without it.")
        threads, complete, divergences = engine.models.target.threads, False, list[DivergentAnswer]()
        try:
            for variant in self.variants.values():  # warm up: pages, caches and clocks; thrown away
                short = replace(variant.settings, max_tokens=min(_WARM_UP_TOKENS, variant.settings.max_tokens))
                Metrics.of(engine.events(next(iter(chosen.values())), self._seed, settings=short))
            for prompt, number, variant in self._order([*chosen]):
                # Every run begins with a cleared cache: reading the prompt forgets what was there.
                metrics = Metrics.of(engine.events(chosen[prompt], self._seed, settings=variant.settings))
                if stopped():
                    raise Interrupted
                self._trials.append(trial_of(variant.name, prompt.id, prompt.category, number, metrics))
                self._transcripts.append(Transcript.of(metrics.history, tuple(engine.models.target.opened.thread_log)))
                update(self._trials, len(chosen) * self._rounds * len(self.variants))
            complete = True
            tokens = {prompt.id: ids for prompt, ids in chosen.items()}
            divergences.extend(self._divergences(engine, tokens))  # an interrupt leaves those that were explained
            engine.keep_costs()
        except (Interrupted, SpecdecError) as error:
            if not self._trials:
                raise
            self.error = error if isinstance(error, SpecdecError) else None
        result = result_of(
            engine,
            self.variants,
            self._trials,
            divergences,
            partial=not complete,
            threads=threads,
            rounds=self._rounds,
            seed=self._seed,
            prompts={prompt.id: prompt.text for prompt in chosen},
            skipped=tuple(prompt.id for prompt in prompts if prompt not in chosen),
            error=self.error,
        )
        remember_speed(engine.pair, result)
        return result

    def _order(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, int, Variant]]:
        variants = [*self.variants.values()]
        for (at, prompt), number in product(enumerate(prompts), range(self._rounds)):
            for variant in variants if (at + number) % 2 == 0 else variants[::-1]:
                yield prompt, number, variant

    def _divergences(self, engine: Engine, prompts: dict[str, list[int]]) -> Iterator[DivergentAnswer]:
        """Each answer that should be its baseline's and is not, with the proof that rounding made it so, or a bug."""
        for i, own in differing(self.variants, self._trials):
            trial, settings = self._trials[i], self.variants[self._trials[i].arm].settings
            answers = self._transcripts[own], self._transcripts[i]
            if divergence := proof.divergence(engine, prompts[trial.prompt], *answers, self._seed, settings):
                yield DivergentAnswer(arm=trial.arm, prompt=trial.prompt, **asdict(divergence), kind=divergence.kind)


def require_exact(result: ComparisonResult) -> None:
    if wrong := [each for each in result.divergences if each.kind == "wrong"]:
        where = f"{wrong[0].arm} differs on prompt {wrong[0].prompt} at token {wrong[0].position}; {wrong[0].bug}"
        raise SpecdecError(
            f"{len(wrong)} of the answers are not the target's own: {where}",
            "This is a bug in specdec: please report it with the output of --json.",
        )


def remember_speed(pair: ModelPair, result: ComparisonResult) -> None:
    """Keep the best variant's speedup for `specdec ls`, with its bounds; of too few prompts for bounds, nothing."""
    measured = [(each.speedup, each.arm) for each in result.of_category("all") if each.speedup and each.speedup.bounds]
    if pair.draft_path and measured and not result.partial:
        best, name = max(measured, key=lambda entry: entry[0].mean)
        speed = tuning.Speed(best.mean, best.low, best.high, name, date.today().isoformat())
        tuning.keep_speed(pair.target_path, pair.draft_path, speed)
