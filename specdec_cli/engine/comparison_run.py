"""The measurement behind `compare`: which trials run in which order, and everything they showed as one object."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specdec_cli import __version__
from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.rules import REPRODUCIBLE
from specdec_cli.drafters import needs_model, needs_small
from specdec_cli.engine import prompt as prompt_text
from specdec_cli.engine.config import Settings
from specdec_cli.engine.corpus import reads_corpus
from specdec_cli.engine.session import Session
from specdec_cli.engine.variants import Arm
from specdec_cli.evaluation import advice
from specdec_cli.evaluation.trials import Summary, Trial, noise, summarise, trial_of
from specdec_cli.llama import library
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.models import memory
from specdec_cli.store.json_store import to_json

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
        self.error: SpecdecError | None = None
        self._complete = False
        self._base = base
        self._rounds = rounds
        self._skipped: list[str] = []
        self._divergences: list[tuple[Trial, Divergence]] = []
        self._about: dict[str, Any] = {}
        self._seed = base.seed if base.seed is not None else 0

    @property
    def loaded(self) -> Settings:
        """Settings that load whatever any arm needs: the draft if one uses it, and the second one likewise."""
        needy = [way for way in self._drafting if needs_model(way.drafter)]
        most = max(needy, key=lambda way: needs_small(way.drafter), default=replace(self._base, drafter="none"))
        return replace(self._base, drafter=most.drafter, draft=most.draft)

    @property
    def _drafting(self) -> list[Settings]:
        return [arm.settings for arm in self.arms if arm.settings.drafter != "none"]

    def run(
        self,
        session: Session,
        prompts: list[Prompt],
        system: str | None,
        raw: bool,
        interrupt: Interrupt,
        update: Update,
    ) -> None:
        """Run every arm on every prompt, each round in the opposite order; keep what an interrupt or error leaves."""
        try:
            chosen = self._fitting(session, prompts, system, raw)
            longest = max(len(tokens) for _, tokens in chosen)
            session.open_contexts(longest, self._drafting)
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
                    raise Interrupted
                self.trials.append(trial)
                update(self.trials, total, baselines)
            self._complete = True
            self._compare_answers(session, {prompt.id: tokens for prompt, tokens in chosen})
            session.keep_costs()
        except Interrupted:
            pass
        except SpecdecError as error:
            if not self.trials:
                raise
            self.error = error
        if self._about:
            self._about["notes"] = [*session.pair.notes, *session.notes]
            self._about["rounding"] = str(session.agreement) if session.agreement else None
        self.exit_code = interrupt.exit_code

    def _trials(self, session: Session, chosen: list[tuple[Prompt, list[int]]]) -> Iterator[Trial]:
        for at, (prompt, tokens) in enumerate(chosen):
            for number in range(self._rounds):
                order = self.arms if (at + number) % 2 == 0 else self.arms[::-1]
                for arm in order:
                    # Every run begins with a cleared cache: reading the prompt forgets what was there.
                    events = session.events(tokens, self._seed, settings=arm.settings)
                    trial = trial_of(arm.name, prompt.id, prompt.category, number, events)
                    transcript = replace(trial.transcript, threads=session.thread_log)
                    yield replace(trial, transcript=transcript)

    def _fitting(
        self, session: Session, prompts: list[Prompt], system: str | None, raw: bool
    ) -> list[tuple[Prompt, list[int]]]:
        """The prompts as tokens, without those that leave no room for an answer."""
        room = self._base.ctx or session.target.n_ctx_train or sys.maxsize
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
        """Prove of each answer that should be the baseline's and is not that rounding made it so, or find a bug."""
        settings = {arm.name: arm.settings for arm in self.arms}
        for trial, own in self._differing():
            prompt, way = prompts[trial.prompt], settings[trial.arm]
            found = session.divergence(prompt, own.transcript, trial.transcript, self._seed, way)
            if found:
                self._divergences.append((trial, found))

    def _differing(self) -> Iterator[tuple[Trial, Trial]]:
        """Trials whose tokens should be their baseline's and are not, with the baseline's."""
        arms = {arm.name: arm for arm in self.arms}
        expected = {(trial.arm, trial.prompt): trial for trial in reversed(self.trials)}
        for trial in self.trials:
            own = expected.get((arms[trial.arm].baseline, trial.prompt))
            if own is not None and _comparable(arms[trial.arm].settings) and trial.tokens != own.tokens:
                yield trial, own

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
            "partial": not self._complete,
            **self._about,
            "rounds": self._rounds,
            "seed": self._seed,
            "arms": [
                {"name": arm.name, "baseline": arm.baseline, "settings": _settings_json(arm.settings)}
                for arm in self.arms
            ],
            "skipped": self._skipped,
            "noise": {arm.name: noise(self.trials, arm.name) for arm in self.arms if arm.name == arm.baseline},
            "costs": to_json(costs),
            "summaries": [_summary_json(summary) for _, summary in summaries],
            "exactness": self._exactness(),
            "divergences": [
                {"arm": trial.arm, "prompt": trial.prompt, **found.to_json()} for trial, found in self._divergences
            ],
            "notes": self._notes(),
            "verdicts": {
                arm.name: [
                    *advice.verdict(
                        summary,
                        self.trials,
                        costs,
                        self._speedups_like(arm) if isinstance(arm.settings.draft_tokens, int) else None,
                        experts,
                    ),
                    *_lossy(summary),
                ]
                for arm, summary in summaries
                if summary.category == "all" and arm.name != arm.baseline
            },
            "trials": [trial.to_json() for trial in self.trials],
        }

    def _exactness(self) -> dict[str, dict[str, int]]:
        """Per arm: answers identical to the baseline's, ones that rounding made differ, wrong ones, and ones not
        looked into before an interrupt; nothing for arms that are not comparable.
        """
        found: dict[str, dict[str, int]] = {}
        differing = [trial.arm for trial, _ in self._differing()]
        for arm in self.arms:
            if arm.name == arm.baseline or not _comparable(arm.settings):
                continue
            mine = [found.kind for trial, found in self._divergences if trial.arm == arm.name]
            different = differing.count(arm.name)
            found[arm.name] = {
                "identical": sum(trial.arm == arm.name for trial in self.trials) - different,
                "rounding": mine.count("rounding"),
                "wrong": mine.count("wrong"),
                "not classified": different - len(mine),
            }
        return found

    def _speedups_like(self, arm: Arm) -> dict[int, float]:
        """The measured speedup at each draft length, of the arms that differ from this one in nothing else."""
        found: dict[int, float] = {}
        for other in self.arms:
            k = other.settings.draft_tokens
            if isinstance(k, int) and replace(other.settings, draft_tokens=arm.settings.draft_tokens) == arm.settings:
                summary = summarise(self.trials, other.name, other.baseline)
                if summary and summary.speedup:
                    found[k] = summary.speedup.mean
        return found

    def _notes(self) -> list[str]:
        """What went wrong without stopping the measurement, each with how often."""
        counted = Counter((trial.arm, note) for trial in self.trials for note in trial.notes)
        answers = Counter(trial.arm for trial in self.trials)
        failed = [f"{arm}: in {count} of {answers[arm]} answers {note}" for (arm, note), count in counted.items()]
        return [*self._about.get("notes", []), *failed, *([str(self.error)] if self.error else [])]


def _lossy(summary: Summary) -> list[str]:
    """A warning where an arm's answers are not distributed as the target's."""
    if summary.distance_per_token is None:
        return []
    return [
        f"This arm is LOSSY: the distribution that a token is drawn from differs from the target's by "
        f"{summary.distance_per_token:.3f} in total variation, on average over the tokens."
    ]


def _comparable(settings: Settings) -> bool:
    """Whether these settings must give the baseline's very tokens."""
    return settings.temp == 0 or settings.accept in REPRODUCIBLE or settings.drafter == "none"


def _settings_json(settings: Settings) -> dict[str, Any]:
    """As they come back from a file; a corpus only where it is looked into, for there alone it changes anything."""
    corpus = list(settings.ngram_corpus) if reads_corpus(settings.drafter) else []
    return {**asdict(settings), "ngram_corpus": corpus or None}


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
                "bytes": header.size,
                "cache_bytes": memory.cache_bytes(header, session.n_ctx),
            }
    experts = pair.target.setting("expert_count")
    return {
        "machine": {
            "devices": [asdict(device) for device in library.devices()],
            "threads": session.threads[0],
            "platform": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **library.versions()},
        "build": library.build_flags(),
        "models": models,
        "experts": experts if isinstance(experts, int) else 0,
        "context": session.n_ctx,
        "corpus": len(session.corpus) if session.corpus else None,
        "load_s": session.load_s,
        "max_tokens": settings.max_tokens,
        "notes": [*pair.notes, *session.notes],
    }
