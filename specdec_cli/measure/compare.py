"""`specdec compare`: runs the trials of all variants in turn, and its result, with all that the trials show.

These dataclasses are the object of `compare --json`, `--save` and `--against`. A display imports them, so llama.cpp is
imported only when something is measured.
"""

from __future__ import annotations

import platform
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from specdec_cli import __version__
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import LEAST_PROMPTS
from specdec_cli.engine.options import given_in
from specdec_cli.gguf import memory
from specdec_cli.json_store import to_json
from specdec_cli.llama.placement import Device
from specdec_cli.measure.advice import advise, costs_of, findings
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.suites import Prompt, fitting
from specdec_cli.measure.trials import (
    OverallVerdict,
    Summary,
    Trial,
    Variant,
    noise,
    overall_verdict,
    summarise,
    trial_of,
)

if TYPE_CHECKING:
    from specdec_cli.engine.config import Settings
    from specdec_cli.engine.model_pair import ModelPair
    from specdec_cli.engine.session import Session

_WARM_UP_TOKENS = 16
_LEAST_ROOM = 16
"""Tokens that an answer must have room for, or its prompt is skipped as too long."""

Update = Callable[[Sequence[Trial], int], None]
"""Called after each trial with the trials so far and how many there will be."""
ShortText: TypeAlias = Annotated[str, Meta(max_length=1000)]
"""What is shown of another result, which may be anybody's."""
_RENAMED = {"arm": "variant", "arms": "variants", "pieces": "texts"}
"""Fields of older results."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model file. cache_bytes: of its keys and values."""

    file: str
    parameters: int
    bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class MachineInfo:
    devices: tuple[Device, ...]
    threads: int
    platform: ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergentAnswer:
    """An answer that is not its baseline's, and why; see `decoding.divergence.Divergence`."""

    variant: str
    prompt: str
    position: int
    width: int = 0
    own_margin: float | None = None
    margin: float | None
    unit: str = "logits"
    bug: str = ""
    kind: Literal["rounding", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """All that a comparison measured: every figure can be computed from it again.

    partial: whether it was stopped before all trials were done. build: llama.cpp's. experts: of the target, 0 for a
    dense model. context: in tokens. corpus: tokens of `--ngram-corpus`. prompts: text by id. rounding: which passes
    agree, if that was measured. skipped: prompts too long for the context. noise: see `statistics.noise`, by baseline.
    exactness: how many answers are the baseline's own, by variant and kind. verdicts: sentences, by variant. advice:
    sentences on all variants together. when: in ISO 8601, "" where it is not known, as is command: the command line.
    """

    format: Literal[1] = 1
    specdec: str
    partial: bool = False
    machine: MachineInfo
    versions: Annotated[dict[ShortText, ShortText], Meta(max_length=100)]
    build: str = ""
    models: dict[str, ModelInfo]
    experts: int = 0
    context: int
    corpus: int | None = None
    load_s: float = 0.0
    max_tokens: int
    notes: tuple[str, ...] = ()
    prompts: dict[str, str]
    rounding: str | None = None
    rounds: int
    seed: int = 0
    variants: tuple[Variant[RecordedSettings], ...]
    skipped: tuple[str, ...] = ()
    noise: dict[str, float | None] = field(default_factory=dict)
    costs: dict[str, Any] | None = None
    summaries: tuple[Summary, ...] = ()
    exactness: dict[str, dict[str, int]] = field(default_factory=dict)
    divergences: tuple[DivergentAnswer, ...] = ()
    verdicts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    when: str = ""
    command: str = ""
    trials: tuple[Trial, ...]

    @classmethod
    def from_json(cls, text: bytes | str) -> ComparisonResult:
        """What `to_json` gave, also in an older version. Raises msgspec.ValidationError on anything else, ValueError or
        RecursionError on what is no JSON.
        """
        data = text.encode() if isinstance(text, str) else text
        data = data.replace(b'"temp":', b'"temperature":')  # as older versions called it
        result = _renamed(msgspec.json.decode(data, type=dict[str, Any]))
        for name in {"summaries", "divergences", "trials"} & result.keys():
            result[name] = [*map(_renamed, msgspec.convert(result[name], list[dict[str, Any]]))]
        return msgspec.convert(result, cls, str_keys=True)

    def to_json(self) -> Any:
        return {**msgspec.to_builtins(self, str_keys=True), "verdict": msgspec.to_builtins(self.verdict)}

    @property
    def verdict(self) -> OverallVerdict:
        """Whether drafting pays, and the ranking of all variants; of older results too."""
        wrong = {each.variant for each in self.divergences if each.kind == "wrong"}
        return overall_verdict(
            self._summaries("all"), {variant.name: variant.baseline for variant in self.variants}, wrong
        )

    @property
    def categories(self) -> list[str]:
        """`all`, and each category that has prompts enough for an interval, if there are several categories."""
        return [name for name, prompts in self._category_sizes.items() if name == "all" or prompts >= LEAST_PROMPTS]

    @property
    def small_categories(self) -> list[str]:
        """The categories of too few prompts for an interval."""
        return [name for name in self._category_sizes if name not in self.categories]

    @property
    def _category_sizes(self) -> dict[str, int]:
        prompts = {category: set[str]() for category in (each.category for each in self.summaries)}
        for trial in self.trials:
            prompts.get(trial.category, set()).add(trial.prompt)
        return {category: len(names) for category, names in prompts.items()}

    def of_category(self, category: str) -> list[Summary]:
        """Each variant's figures, in the order of the ranking, which is the same in all categories."""
        order = self.verdict.ranking
        return sorted(self._summaries(category), key=lambda summary: order.index(summary.variant))

    def _summaries(self, category: str) -> list[Summary]:
        return [summary for summary in self.summaries if summary.category == category]

    def speeds(self, variant: str) -> Mapping[str, float]:
        """A variant's median tokens per second by the text of the prompt."""
        speeds: dict[str, list[float]] = {}
        for trial in self.trials:
            if trial.variant == variant and trial.tokens_per_s and trial.prompt in self.prompts:
                speeds.setdefault(self.prompts[trial.prompt], []).append(trial.tokens_per_s)
        return {prompt: statistics.median(values) for prompt, values in speeds.items()}


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of an older version by its fields' names of today."""
    return {_RENAMED.get(name, name): value for name, value in record.items()}


class ComparisonRun:
    """Runs variants on prompts with one loaded pair. rounds: per prompt; one does not show the machine's noise."""

    def __init__(self, settings: Settings, variants: Sequence[Variant[Settings]], rounds: int = 2) -> None:
        if rounds < 1:
            raise UsageError(f"repeat cannot be {rounds}", "Give 1 or more; with 1 the machine's noise stays unknown.")
        self.error: SpecdecError | None = None
        """What stopped the run after some trials."""
        self.variants = {variant.name: variant for variant in variants}
        self._settings, self._seed, self._rounds = settings, settings.seed or 0, rounds
        self._trials: list[Trial] = []
        self._transcripts: list[Transcript] = []
        self._divergences: list[DivergentAnswer] = []

    @property
    def loaded(self) -> Settings:
        """Settings that load whatever any variant needs: the draft if one uses it, and the second one likewise."""
        needy = [settings for settings in self.drafting if settings.chain.needs_model]
        most = max(needy, key=lambda settings: settings.chain.needs_small, default=self._settings.alone())
        return replace(self._settings, drafter=most.drafter, draft=most.draft)

    @property
    def baselines(self) -> dict[str, str]:
        return {name: variant.baseline for name, variant in self.variants.items()}

    @property
    def drafting(self) -> list[Settings]:
        """The settings that draft."""
        return [variant.settings for variant in self.variants.values() if variant.settings.drafter != "none"]

    def run(
        self,
        session: Session,
        prompts: Sequence[Prompt],
        system: str | None = None,
        raw: bool = False,
        update: Update = lambda _, __: None,
    ) -> ComparisonResult:
        """Run every variant on every prompt, each round in the opposite order. The engine has opened no contexts yet.

        After an interrupt or an error the result is partial; if there is no trial yet, it is raised.
        """
        room = self._settings.ctx or session.models.target.model.n_ctx_train or sys.maxsize
        chosen = fitting(session, prompts, room - _LEAST_ROOM, system, raw)
        if not chosen:
            raise SpecdecError(
                f"all {len(prompts)} prompts are too long for a context of {room:,} tokens",
                "Give shorter prompts or a larger context (-c).",
            )
        session.open(max(map(len, chosen.values())), self.drafting or [self._settings.alone()])
        if not session.drafts:
            raise SpecdecError(session.notes[-1], "There is nothing to compare without it.")
        threads, complete = session.models.target.threads, False
        try:
            self._warm_up(session, next(iter(chosen.values())))
            for prompt, number, variant in self._order([*chosen]):
                # Every run begins with a cleared cache: reading the prompt forgets what was there.
                metrics = Metrics.of(session.events(chosen[prompt], self._seed, settings=variant.settings))
                if session.interrupt.is_set():
                    raise Interrupted
                self._trials.append(trial_of(variant.name, prompt.id, prompt.category, number, metrics))
                self._transcripts.append(Transcript.of(metrics.history, tuple(session.models.target.opened.thread_log)))
                update(self._trials, len(chosen) * self._rounds * len(self.variants))
            complete = True
            self._explain(session, {prompt.id: ids for prompt, ids in chosen.items()})
            session.keep_costs()
        except (Interrupted, SpecdecError) as error:
            if not self._trials:
                raise
            self.error = error if isinstance(error, SpecdecError) else None
        skipped = tuple(prompt.id for prompt in prompts if prompt not in chosen)
        texts = {prompt.id: prompt.text for prompt in chosen}
        result = self._result(session, threads, partial=not complete, prompts=texts, skipped=skipped)
        self._remember_speed(session.pair, result)
        return result

    def _remember_speed(self, pair: ModelPair, result: ComparisonResult) -> None:
        """Keep the speedup of the best variant in which the pair's draft model drafts, for `specdec ls`, with its
        bounds; of too few prompts for bounds, nothing.
        """
        from specdec_cli.engine.model_pair import setup_of_pair
        from specdec_cli.pairs import speeds

        of_pair = {name for name, variant in self.variants.items() if variant.settings.chain.needs_model}
        summaries = [each for each in result.of_category("all") if each.variant in of_pair]
        measured = [(each.claimed, each.variant) for each in summaries if each.claimed and each.claimed.bounds]
        if pair.draft_path and measured and not result.partial:
            best, name = max(measured, key=lambda entry: entry[0].mean)
            speed = speeds.Speed(best.mean, best.low, best.high, name, date.today().isoformat())
            speeds.keep_speed(pair.target_path, pair.draft_path, speed, setup_of_pair(pair, self._settings))

    def _warm_up(self, session: Session, prompt: list[int]) -> None:
        """Warm pages, caches and clocks; what comes of it is thrown away."""
        for variant in self.variants.values():
            short = replace(variant.settings, max_tokens=min(_WARM_UP_TOKENS, variant.settings.max_tokens))
            Metrics.of(session.events(prompt, self._seed, settings=short))

    def _order(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, int, Variant[Settings]]]:
        variants = [*self.variants.values()]
        for (at, prompt), number in product(enumerate(prompts), range(self._rounds)):
            for variant in variants if (at + number) % 2 == 0 else variants[::-1]:
                yield prompt, number, variant

    def _differing(self) -> Iterator[tuple[int, int]]:
        """Which trials should have their baseline's very tokens and do not; each with the baseline's first one."""
        first = {(self._trials[i].variant, self._trials[i].prompt): i for i in reversed(range(len(self._trials)))}
        for i, trial in enumerate(self._trials):
            variant = self.variants[trial.variant]
            own = first.get((variant.baseline, trial.prompt))
            if variant.settings.reproduces and own is not None and trial.tokens != self._trials[own].tokens:
                yield i, own

    def _explain(self, session: Session, prompts: dict[str, list[int]]) -> None:
        """For each answer that should be its baseline's and is not, prove that rounding or a bug made the difference.
        After an interrupt, those explained so far are kept.
        """
        for i, own in self._differing():
            trial, settings = self._trials[i], self.variants[self._trials[i].variant].settings
            answers = self._transcripts[own], self._transcripts[i]
            if divergence := session.divergence(prompts[trial.prompt], *answers, self._seed, settings):
                why = asdict(divergence)
                answer = DivergentAnswer(variant=trial.variant, prompt=trial.prompt, **why, kind=divergence.kind)
                self._divergences.append(answer)

    def _result(self, session: Session, threads: int, **about: Any) -> ComparisonResult:
        """All that the trials show. about: further fields of the result."""
        from specdec_cli.llama import library

        trials, variants = self._trials, self.variants
        categories = sorted({trial.category for trial in trials})
        summaries = [
            summary
            for category in ["all", *(categories if len(categories) > 1 else [])]
            for each in variants.values()
            if (summary := summarise(trials, each.name, each.baseline, category))
        ]
        costs, agreement = costs_of(trials), session.costs.agreement
        experts = experts if isinstance(experts := session.pair.target.setting("expert_count"), int) else 0
        context = session.models.target.opened.n_ctx
        result = ComparisonResult(
            specdec=__version__,
            machine=MachineInfo(tuple(library.devices()), threads, platform.platform()),
            versions={"python": platform.python_version(), **library.versions()},
            build=library.build_flags(),
            models=_models(session.pair, context),
            experts=experts,
            context=context,
            corpus=len(session.weights.corpus) if session.weights.corpus else None,
            load_s=session.weights.load_s,
            max_tokens=session.settings.max_tokens,
            notes=(*session.notes, *self._notes(), *([str(self.error)] if self.error else [])),
            rounding=str(agreement) if agreement else None,
            rounds=self._rounds,
            seed=self._seed,
            variants=tuple(Variant(each.name, each.baseline, _recorded(each)) for each in variants.values()),
            noise={name: noise(trials, name) for name, each in variants.items() if each.is_baseline},
            costs=to_json(costs) if costs else None,
            summaries=tuple(summaries),
            exactness=self._exactness(),
            divergences=tuple(self._divergences),
            verdicts={
                each.variant: tuple(findings(each))
                for each in summaries
                if each.category == "all" and not variants[each.variant].is_baseline
            },
            when=datetime.now().astimezone().isoformat(timespec="minutes"),
            trials=tuple(trials),
            **about,
        )
        words = advise(result.verdict, result.variants, result.of_category("all"), trials, experts)
        return replace(result, advice=tuple(words))

    def _notes(self) -> Iterator[str]:
        answers = Counter(trial.variant for trial in self._trials)
        counted = Counter((trial.variant, note) for trial in self._trials for note in trial.notes)
        for (variant, note), count in counted.items():
            yield f"{variant}: in {count} of {answers[variant]} answers {note}"

    def _exactness(self) -> dict[str, dict[str, int]]:
        """Per variant: answers identical to the baseline's, ones that rounding made differ, wrong ones, and ones not
        looked into before an interrupt; nothing for variants that need not be identical.
        """
        answers = Counter(trial.variant for trial in self._trials)
        different = Counter(self._trials[i].variant for i, _ in self._differing())
        kinds = Counter((each.variant, each.kind) for each in self._divergences)
        return {
            name: {
                "identical": answers[name] - different[name],
                "rounding": kinds[name, "rounding"],
                "wrong": kinds[name, "wrong"],
                "not classified": different[name] - kinds[name, "rounding"] - kinds[name, "wrong"],
            }
            for name, variant in self.variants.items()
            if not variant.is_baseline and variant.settings.reproduces
        }


def require_exact(result: ComparisonResult) -> None:
    """Raise SpecdecError if an answer that should be the target's own is not, for another reason than rounding."""
    if wrong := [each for each in result.divergences if each.kind == "wrong"]:
        where = f"{wrong[0].variant} differs on prompt {wrong[0].prompt} at token {wrong[0].position}; {wrong[0].bug}"
        raise SpecdecError(
            f"{len(wrong)} of the answers are not the target's own: {where}",
            "This is a bug in specdec: please report it with the output of --json.",
        )


def _recorded(variant: Variant[Settings]) -> RecordedSettings:
    """All settings; a corpus, and the draft's adapters, only where they are used: elsewhere they change nothing."""
    settings, chain = variant.settings, variant.settings.chain
    corpus = settings.ngram_corpus if chain.reads_texts else ()
    lora = {"lora": settings.lora or None, "lora_draft": (settings.lora_draft if chain.needs_model else ()) or None}
    return RecordedSettings(**{**given_in(settings), "ngram_corpus": corpus or None, **lora})


def _models(pair: ModelPair, n_ctx: int) -> dict[str, ModelInfo]:
    models = {"target": (pair.target, pair.target_path), "draft": (pair.draft, pair.draft_path)}
    return {
        role: ModelInfo(path.name, header.n_params, header.size, memory.cache_bytes(header, n_ctx))
        for role, (header, path) in models.items()
        if header and path
    }
