"""`specdec compare`: runs the trials of all variants in turn, and holds the result with everything that they show.

`compare --json`, `--save` and `--against` use these dataclasses. Displays import them, so this file imports llama.cpp
only when it measures.
"""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from specdec_cli import __version__
from specdec_cli.decoding.divergence import Divergence, Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import MIN_PROMPTS
from specdec_cli.gguf import memory
from specdec_cli.json_store import to_json
from specdec_cli.llama.placement import Device
from specdec_cli.measure.advice import advise, costs_of
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.measure.suites import SuitePrompt, fitting
from specdec_cli.measure.trials import Summary, Trial, Variant, by_prompt, noise, summarise, trial_of
from specdec_cli.measure.verdict import OverallVerdict, findings, overall_verdict
from specdec_cli.settings.options import AUTO, given_in
from specdec_cli.user_files import name_as_text

if TYPE_CHECKING:
    from specdec_cli.engine.session import Session
    from specdec_cli.settings.settings import Settings
    from specdec_cli.weights.model_pair import ModelPair

_WARM_UP_TOKENS = 16
_MIN_ROOM = 16
"""Tokens that an answer must have room for, or its prompt is skipped as too long."""

Update = Callable[[int, int], None]
"""Called after each trial with the number of trials so far and of all."""
ShortText: TypeAlias = Annotated[str, Meta(max_length=1000)]
"""Text from a result file, which may come from anyone."""
_RENAMED = {"arm": "variant", "arms": "variants", "pieces": "texts", "temp": "temperature"}
"""Names of fields in older results, and their names now."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model file. cache_bytes: what it keeps of a text as long as the context, so not a part of what it is."""

    file: str
    parameters: int
    bytes: int
    cache_bytes: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class MachineInfo:
    devices: tuple[Device, ...]
    threads: int
    platform: ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergentAnswer:
    """An answer that differs from its baseline's, and why; see `decoding.divergence.Divergence`."""

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
    """Everything that a comparison measured: all figures can be computed from it again.

    partial: whether it was stopped before all trials were done. build: llama.cpp's. experts: of the target, 0 for a
    dense model. context: in tokens. corpus: tokens of `--ngram-corpus`. prompts: text by id. rounding: which passes
    agree, if that was measured. skipped: prompts too long for the context. noise: see `trials.noise`, by baseline.
    exactness: how many answers are the baseline's own, by variant and kind. verdicts: sentences, by variant. advice:
    sentences on all variants together. when: in ISO 8601. command: the command line. Both are "" if not known.
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
    _repr_html_: ClassVar[Callable[[ComparisonResult], str]]
    """For notebooks; `api` sets it."""

    @classmethod
    def from_json(cls, text: bytes | str) -> ComparisonResult:
        """Read what `to_json` wrote, also in an older version.

        Raises msgspec.ValidationError on any other JSON, ValueError or RecursionError if it isn't JSON.
        """
        result = _renamed(msgspec.json.decode(text, type=dict[str, Any]))
        for name in {"summaries", "divergences", "trials"} & result.keys():
            result[name] = [*map(_renamed, msgspec.convert(result[name], list[dict[str, Any]]))]
        variants = msgspec.convert(result.get("variants"), list[Variant[dict[str, Any]]])
        result["variants"] = [asdict(replace(each, settings=_renamed(each.settings))) for each in variants]
        return msgspec.convert(result, cls, str_keys=True)

    def to_json(self) -> Any:
        data = {**msgspec.to_builtins(self, str_keys=True), "verdict": msgspec.to_builtins(self.verdict)}
        return json.loads(json.dumps(data, ensure_ascii=False).encode(errors="replace"))  # paths may not be UTF-8

    @property
    def wrong(self) -> set[str]:
        """The variants with wrong answers."""
        return {each.variant for each in self.divergences if each.kind == "wrong"}

    @property
    def verdict(self) -> OverallVerdict:
        """Whether drafting pays, and the ranking of all variants; of older results too."""
        baselines = {each.name: each.baseline for each in self.variants}
        auto = [each for each in self.variants if each.settings.draft_tokens == AUTO and (each.settings.tree or 1) == 1]
        names = [each.name for each in auto if each.settings.drafter != "none" and not each.settings.draft_min_p]
        default = min(names, key=lambda name: ("drafter=" in name, not name.endswith(f"k={AUTO}")), default=None)
        return overall_verdict(self._summaries("all"), baselines, self.wrong, default)

    @property
    def categories(self) -> list[str]:
        """`all`, and each category with enough prompts for an interval, if there are several categories."""
        return [name for name, prompts in self._category_sizes.items() if name == "all" or prompts >= MIN_PROMPTS]

    @property
    def small_categories(self) -> list[str]:
        """The categories with too few prompts for an interval."""
        return [name for name in self._category_sizes if name not in self.categories]

    @property
    def _category_sizes(self) -> dict[str, int]:
        prompts = {category: set[str]() for category in (each.category for each in self.summaries)}
        for trial in self.trials:
            prompts.get(trial.category, set()).add(trial.prompt)
        return {category: len(names) for category, names in prompts.items()}

    def of_category(self, category: str) -> list[Summary]:
        """Each variant's figures, in the order of the ranking over all prompts."""
        order = self.verdict.ranking
        return sorted(self._summaries(category), key=lambda summary: order.index(summary.variant))

    def _summaries(self, category: str) -> list[Summary]:
        return [summary for summary in self.summaries if summary.category == category]

    def speeds(self, variant: str) -> dict[str, float]:
        """A variant's tokens per second by the text of the prompt."""
        return by_prompt(
            (self.prompts[trial.prompt], trial.tokens_per_s)
            for trial in self.trials
            if trial.variant == variant and trial.tokens_per_s and trial.prompt in self.prompts
        )


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of an older version, with the fields' present names."""
    return {_RENAMED.get(name, name): value for name, value in record.items()}


class ComparisonRun:
    """Runs variants on prompts with one loaded pair. rounds: per prompt; one doesn't show the machine's noise."""

    def __init__(self, settings: Settings, variants: Sequence[Variant[Settings]], rounds: int = 2) -> None:
        if rounds < 1:
            fix = "Give 1 or more. It takes 2 to show the machine's noise."
            raise UsageError(f"the number of rounds can't be {rounds}", fix)
        self.error: SpecdecError | None = None
        """What stopped the run after some trials."""
        self.variants = {variant.name: variant for variant in variants}
        self._settings, self._seed, self._rounds = settings, settings.seed or 0, rounds
        self._trials: list[Trial] = []
        self._transcripts: list[Transcript] = []
        self._divergences: list[DivergentAnswer] = []

    @property
    def loaded(self) -> Settings:
        """Settings that load every model that some variant needs."""
        needy = [settings for settings in self.drafting if settings.cascade.needs_model]
        most = max(needy, key=lambda settings: settings.cascade.needs_small, default=self._settings.alone())
        return replace(self._settings, drafter=most.drafter, draft=most.draft)

    @property
    def drafting(self) -> list[Settings]:
        return [variant.settings for variant in self.variants.values() if variant.settings.drafter != "none"]

    def run(
        self,
        session: Session,
        prompts: Sequence[SuitePrompt],
        system: str | None = None,
        raw: bool = False,
        update: Update = lambda _, __: None,
    ) -> ComparisonResult:
        """Run every variant on every prompt, and reverse the order in each round. The session has no contexts yet.

        An interrupt or an error is raised if there are no trials yet; later, the result is partial.
        """
        room = self._settings.ctx or session.models.target.model.n_ctx_train or sys.maxsize
        chosen = fitting(session, self._settings, prompts, room - _MIN_ROOM, system, raw)
        if not chosen:
            raise SpecdecError(
                f"all {len(prompts)} prompts are too long for a context of {room:,} tokens",
                "Give shorter prompts or a larger context (-c).",
            )
        session.open(max(map(len, chosen.values())), self.drafting or [self._settings.alone()])
        session.require_drafts("Without drafts there is nothing to compare.")
        context, complete = session.models.target.open_kv, False
        try:
            self._warm_up(session, next(iter(chosen.values())))
            for prompt, number, variant in self._order([*chosen]):
                # Every answer starts with an empty cache: reading the prompt clears it.
                metrics = Metrics.of(session.events(chosen[prompt], self._seed, settings=variant.settings))
                if session.interrupt.is_set():
                    raise Interrupted
                self._trials.append(trial_of(variant.name, prompt.id, prompt.category, number, metrics))
                self._transcripts.append(Transcript.of(metrics.history, tuple(context.thread_log)))
                update(len(self._trials), len(chosen) * self._rounds * len(self.variants))
            complete = True
            self._explain(session, {prompt.id: ids for prompt, ids in chosen.items()})
            session.keep_costs()
        except (Interrupted, SpecdecError) as error:
            if not self._trials:
                raise
            self.error = error if isinstance(error, SpecdecError) else None
        skipped = tuple(prompt.id for prompt in prompts if prompt not in chosen)
        texts = {prompt.id: prompt.text for prompt in chosen}
        result = self._result(session, context.n_ctx, partial=not complete, prompts=texts, skipped=skipped)
        self._remember_speed(session.pair, result)
        return result

    def _remember_speed(self, pair: ModelPair, result: ComparisonResult) -> None:
        """Keep the speedup of the best exact variant that uses the pair's draft model, for `specdec ls`, if it has
        bounds, with those that hold for the best of so many. One that is faster than the target alone is better than
        one that only may be.
        """
        from specdec_cli.pairs import speeds
        from specdec_cli.weights.model_pair import setup_of_pair

        of_pair = {name for name, variant in self.variants.items() if variant.settings.cascade.needs_model}
        summaries = [each for each in result.of_category("all") if each.variant in of_pair - result.wrong]
        exact = [each for each in summaries if each.distance_per_token is None]
        right = {name for name, variant in self.variants.items() if not variant.is_baseline} - result.wrong
        drafting = [each for each in result.of_category("all") if each.variant in right and not each.ran_alone]
        count = sum(bool(each.finding) and each.distance_per_token is None for each in drafting)
        measured = [(each.speedup.best_of(count), each.variant) for each in exact if each.speedup and each.bounds]
        if pair.draft_path and measured and not result.partial:
            best, name = max(measured, key=lambda entry: (entry[0].difference == "faster", entry[0].mean))
            speed = speeds.Speed(best.mean, best.low, best.high, name, date.today().isoformat())
            speeds.keep_speed(pair.target_path, pair.draft_path, speed, setup_of_pair(pair, self._settings))

    def _warm_up(self, session: Session, prompt: list[int]) -> None:
        """Warm up pages, caches and clocks; nothing of it is measured."""
        for variant in self.variants.values():
            short = replace(variant.settings, max_tokens=min(_WARM_UP_TOKENS, variant.settings.max_tokens))
            Metrics.of(session.events(prompt, self._seed, settings=short))

    def _order(self, prompts: Sequence[SuitePrompt]) -> Iterator[tuple[SuitePrompt, int, Variant[Settings]]]:
        variants = [*self.variants.values()]
        for (at, prompt), number in product(enumerate(prompts), range(self._rounds)):
            for variant in variants if (at + number) % 2 == 0 else variants[::-1]:
                yield prompt, number, variant

    def _differing(self) -> Iterator[tuple[int, int]]:
        """The trials that should have their baseline's tokens and don't, each with the baseline's first trial."""
        first = {(self._trials[i].variant, self._trials[i].prompt): i for i in reversed(range(len(self._trials)))}
        for i, trial in enumerate(self._trials):
            variant = self.variants[trial.variant]
            alone = first.get((variant.baseline, trial.prompt))
            if variant.settings.reproduces and alone is not None and trial.tokens != self._trials[alone].tokens:
                yield i, alone

    def _explain(self, session: Session, prompts: dict[str, list[int]]) -> None:
        """Prove for each answer that should be its baseline's, and isn't, whether rounding or a bug is the cause.

        Two answers that took the same passes twice are proved once: they compute the same again. After an interrupt,
        the proofs so far are kept.
        """
        proofs: dict[tuple[object, ...], Divergence | None] = {}
        for i, alone in self._differing():
            trial, settings = self._trials[i], self.variants[self._trials[i].variant].settings
            prompt, answers = prompts[trial.prompt], (self._transcripts[alone], self._transcripts[i])
            if (pair := (trial.variant, *prompt, *answers)) not in proofs:
                proofs[pair] = session.divergence(prompt, *answers, self._seed, settings)
            if divergence := proofs[pair]:
                why = asdict(divergence)
                answer = DivergentAnswer(variant=trial.variant, prompt=trial.prompt, **why, kind=divergence.kind)
                self._divergences.append(answer)

    def _result(self, session: Session, context: int, **about: Any) -> ComparisonResult:
        """Everything that the trials show. about: further fields of the result."""
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
        bitwise = any(each.settings.bitwise for each in variants.values())
        slower = agreement.notes if agreement and bitwise else ()
        experts = session.pair.target.count("expert_count")
        result = ComparisonResult(
            specdec=__version__,
            machine=MachineInfo(tuple(library.devices()), session.models.target.threads, platform.platform()),
            versions={"python": platform.python_version(), **library.versions()},
            build=library.build_flags(),
            models=_models(session.pair, context),
            experts=experts,
            context=context,
            corpus=len(session.weights.corpus) if session.weights.corpus else None,
            load_s=session.weights.load_s,
            max_tokens=session.settings.max_tokens,
            notes=(*session.notes, *slower, *self._notes(), *([str(self.error)] if self.error else [])),
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
        right = [each for each in result.of_category("all") if each.variant not in result.wrong]
        words = advise(result.verdict, result.variants, right, trials, experts)
        return replace(result, advice=tuple(words))

    def _notes(self) -> Iterator[str]:
        answers = Counter(trial.variant for trial in self._trials)
        counted = Counter((trial.variant, note) for trial in self._trials for note in trial.notes)
        for (variant, note), count in counted.items():
            yield f"{variant}: in {count} of {answers[variant]} answers {note}"

    def _exactness(self) -> dict[str, dict[str, int]]:
        """How many answers of each variant are identical to the baseline's, differ by rounding, are wrong, or weren't
        classified before an interrupt. Variants that needn't be identical are left out.
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
    """Raise SpecdecError if an answer that should be the target's own differs by more than rounding."""
    if wrong := [each for each in result.divergences if each.kind == "wrong"]:
        first = wrong[0]
        where = f"{first.variant} differs on prompt {first.prompt} at token {first.position + 1}; {first.bug}"
        raise SpecdecError(
            f"{len(wrong)} of the answers are not the target's own: {where}",
            "This is a bug in specdec: please report it with the output of --json.",
        )


def _recorded(variant: Variant[Settings]) -> RecordedSettings:
    """All settings, but the corpus and the draft's adapters only where they're used: they change nothing elsewhere."""
    settings, cascade = variant.settings, variant.settings.cascade
    corpus = settings.ngram_corpus if cascade.reads_texts else ()
    lora = {"lora": settings.lora or None, "lora_draft": (cascade.needs_whole_model and settings.lora_draft) or None}
    return RecordedSettings(**{**given_in(settings), "ngram_corpus": corpus or None, "length_policy": None, **lora})


def _models(pair: ModelPair, n_ctx: int) -> dict[str, ModelInfo]:
    models = {"target": (pair.target, pair.target_path), "draft": (pair.draft, pair.draft_path)}
    return {
        role: ModelInfo(name_as_text(path.name), header.n_params, header.size, memory.cache_bytes(header, n_ctx))
        for role, (header, path) in models.items()
        if header and path
    }
