"""The measurement behind `compare`: which trials run in which order, and everything they showed as one object."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specdec_cli import __version__
from specdec_cli.cli import prompt as prompt_text
from specdec_cli.cli.arms import Arm
from specdec_cli.cli.session import Session
from specdec_cli.cli.settings import Settings
from specdec_cli.decoding import advice
from specdec_cli.decoding.comparison import Divergence, Trial, first_difference, noise, summarise, trial_of
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama import library
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.models import memory

if TYPE_CHECKING:
    from specdec_cli.models.suites import Prompt

FORMAT = 1
_WARM_UP_TOKENS = 16
_LEAST_ROOM = 16
"""Tokens that an answer must have room for, or its prompt is skipped as too long."""

Update = Callable[[list[Trial], int, dict[str, str]], None]
"""Told after each trial: the trials so far, how many there will be, each arm's baseline."""


class Measurement:
    """All trials of one comparison."""

    def __init__(self, base: Settings, arms: list[Arm], rounds: int) -> None:
        self.arms = arms
        self.trials: list[Trial] = []
        self.exit_code = 0
        self._base = base
        self._rounds = rounds
        self._skipped: list[str] = []
        self._divergences: list[Divergence] = []
        self._about: dict[str, Any] = {}
        self._seed = base.seed if base.seed is not None else 0

    @property
    def loaded(self) -> Settings:
        """Settings that load whatever any arm needs: the draft if one uses it, rows for the longest draft."""
        drafting = [arm.settings for arm in self.arms if arm.settings.drafter != "none"]
        longest = max((settings.draft_tokens for settings in drafting), default=1)
        return replace(self._base, drafter="model" if drafting else "none", draft_tokens=longest)

    def run(
        self,
        session: Session,
        prompts: list[Prompt],
        system: str | None,
        raw: bool,
        interrupt: Interrupt,
        update: Update,
    ) -> None:
        """Run every arm on every prompt, each round in the opposite order; keep what an interrupt leaves."""
        chosen = self._fitting(session, prompts, system, raw)
        session.open_contexts(max(len(tokens) for _, tokens in chosen))
        if not session.drafts:
            raise SpecdecError(session.notes[-1], "There is nothing to compare without it.")
        self._about = {**_about(session, self.loaded), "prompts": {prompt.id: prompt.text for prompt, _ in chosen}}
        for arm in self.arms:  # warm up: pages, caches and clocks; thrown away
            short = replace(arm.settings, max_tokens=min(_WARM_UP_TOKENS, arm.settings.max_tokens))
            trial_of(arm.name, "", "", -1, session.events(chosen[0][1], self._seed, settings=short))
        baselines = {arm.name: arm.baseline for arm in self.arms}
        total = len(chosen) * self._rounds * len(self.arms)
        for trial in self._trials(session, chosen):
            if interrupt.is_set():
                self.exit_code = interrupt.exit_code
                return
            self.trials.append(trial)
            update(self.trials, total, baselines)
        self._compare_answers(session, {prompt.id: tokens for prompt, tokens in chosen})

    def _trials(self, session: Session, chosen: list[tuple[Prompt, list[int]]]) -> Iterator[Trial]:
        for at, (prompt, tokens) in enumerate(chosen):
            for number in range(self._rounds):
                order = self.arms if (at + number) % 2 == 0 else self.arms[::-1]
                for arm in order:
                    # Every run begins with a cleared cache: reading the prompt forgets what was there.
                    events = session.events(tokens, self._seed, settings=arm.settings)
                    yield trial_of(arm.name, prompt.id, prompt.category, number, events)

    def _fitting(
        self, session: Session, prompts: list[Prompt], system: str | None, raw: bool
    ) -> list[tuple[Prompt, list[int]]]:
        """The prompts as tokens, without those that leave no room for an answer."""
        room = self._base.ctx or session.target.n_ctx_train
        chosen = []
        for prompt in prompts:
            tokens, _ = prompt_text.tokenize(prompt.text, system, raw, session.target, session.pair.target)
            if len(tokens) + _LEAST_ROOM > room:
                self._skipped.append(prompt.id)
            else:
                chosen.append((prompt, tokens))
        if not chosen:
            raise SpecdecError(
                f"all {len(prompts)} prompts are too long for a context of {room:,} tokens",
                "Give shorter prompts or a larger context (-c).",
            )
        return chosen

    def _compare_answers(self, session: Session, prompts: dict[str, list[int]]) -> None:
        """Find every answer that should be the baseline's and is not, and by what margin."""
        settings = {arm.name: arm.settings for arm in self.arms}
        baselines = {arm.name: arm.baseline for arm in self.arms}
        expected = {(trial.arm, trial.prompt): trial.tokens for trial in reversed(self.trials)}
        for trial in self.trials:
            mine, own = settings[trial.arm], expected[baselines[trial.arm], trial.prompt]
            if not _comparable(mine):
                continue
            position = first_difference(trial.tokens, own)
            if position is None:
                continue
            context = [*prompts[trial.prompt], *own[:position]]
            if mine.temp > 0:
                # A draw is a tie in other units: a tenth of the margin that counts as one for logits.
                margin = 10 * session.draw_margin(context, position, self._seed, mine)
            else:
                margin = session.margin_after(context)
            self._divergences.append(Divergence(trial.arm, trial.prompt, position, margin))

    def to_json(self) -> dict[str, Any]:
        """Everything: enough to compute every figure again."""
        categories = sorted({trial.category for trial in self.trials})
        names = ["all", *categories] if len(categories) > 1 else ["all"]
        summaries = [
            (arm, summary)
            for name in names
            for arm in self.arms
            if (summary := summarise(self.trials, arm.name, arm.baseline, name))
        ]
        costs = advice.costs_of(self.trials)
        experts = self._about.get("experts", 0)
        return {
            "format": FORMAT,
            "specdec": __version__,
            "partial": self.exit_code != 0,
            **self._about,
            "rounds": self._rounds,
            "seed": self._seed,
            "arms": [
                {"name": arm.name, "baseline": arm.baseline, "settings": asdict(arm.settings)} for arm in self.arms
            ],
            "skipped": self._skipped,
            "noise": {arm.name: noise(self.trials, arm.name) for arm in self.arms if arm.name == arm.baseline},
            "costs": asdict(costs) if costs else None,
            "summaries": [_summary_json(summary) for _, summary in summaries],
            "exactness": self._exactness(),
            "divergences": [{**asdict(found), "sameness": found.sameness} for found in self._divergences],
            "verdicts": {
                arm.name: advice.verdict(summary, self.trials, costs, experts)
                for arm, summary in summaries
                if summary.category == "all" and arm.name != arm.baseline
            },
            "trials": [trial.to_json() for trial in self.trials],
        }

    def _exactness(self) -> dict[str, dict[str, int]]:
        """Per arm: answers identical to the baseline's, rounding ties, wrong ones; nothing for incomparable arms."""
        found: dict[str, dict[str, int]] = {}
        if self.exit_code:
            return found
        for arm in self.arms:
            if arm.name == arm.baseline or not _comparable(arm.settings):
                continue
            ties = sum(d.arm == arm.name and d.sameness == "rounding tie" for d in self._divergences)
            wrong = sum(d.arm == arm.name and d.sameness == "wrong" for d in self._divergences)
            answers = sum(trial.arm == arm.name for trial in self.trials)
            found[arm.name] = {"identical": answers - ties - wrong, "rounding tie": ties, "wrong": wrong}
        return found


def _comparable(settings: Settings) -> bool:
    """Whether these settings must give the baseline's very tokens."""
    return settings.temp == 0 or settings.accept == "match" or settings.drafter == "none"


def _summary_json(summary: Any) -> dict[str, Any]:
    data: dict[str, Any] = summary.to_json()
    if summary.speedup is not None:
        data["speedup"]["difference"] = summary.speedup.difference
    return data


def _about(session: Session, settings: Settings) -> dict[str, Any]:
    """Machine, versions and models."""
    pair = session.pair
    models = {}
    for role, header, path in (("target", pair.target, pair.target_path), ("draft", pair.draft, pair.draft_path)):
        if header is not None and path is not None:
            models[role] = {
                "file": path.name,
                "parameters": header.n_params,
                "bytes": path.stat().st_size,
                "cache_bytes": memory.cache_bytes(header, session.n_ctx),
            }
    experts = pair.target.setting("expert_count")
    return {
        "machine": {
            "devices": [asdict(device) for device in library.devices()],
            "threads": settings.threads or library.physical_cores(),
            "platform": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **library.versions()},
        "build": library.build_flags(),
        "models": models,
        "experts": experts if isinstance(experts, int) else 0,
        "context": session.n_ctx,
        "load_s": session.load_s,
    }
