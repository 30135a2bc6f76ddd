"""`specdec tune`: measures a pair on this machine, predicts its speedup, and saves both for later commands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specdec_cli import user_files
from specdec_cli.decoding.costs import Costs
from specdec_cli.decoding.errors import IncompatiblePair, Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.rules import LOSSY
from specdec_cli.json_store import to_json
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.placement import Placement
from specdec_cli.measure import acceptance_traces, hardware
from specdec_cli.measure.acceptance_traces import Recording, record, recording_of
from specdec_cli.measure.simulate import Answer, Prediction, calibrate, n_recorded, predict, verdict
from specdec_cli.measure.suites import fitting, in_turn, tuning_prompts
from specdec_cli.settings.options import AUTO
from specdec_cli.settings.settings import Settings
from specdec_cli.weights import tuning
from specdec_cli.weights.model_pair import ModelPair, check_pair, setup_of_pair
from specdec_cli.weights.tuning import Tuning

if TYPE_CHECKING:
    from specdec_cli.engine.session import Session
    from specdec_cli.llama.context import Context

_CONTEXT = 1024
_ANSWER = 64
_PLACEMENT_CONTEXT = 256
_ROOM = 32
"""Tokens of room after a prompt, for an answer and for drafts that continue after a rejected token."""
_MIN_TOKENS = 100
"""Fewer recorded tokens say too little about acceptance."""
_PATIENCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """A pair's predicted speeds under some costs. recorded_tokens: tokens with a recorded draft token."""

    target: str
    draft: str
    greedy: bool
    recorded_tokens: int
    costs: Costs
    predictions: tuple[Prediction, ...]
    verdict: tuple[str, ...]

    def to_json(self) -> Any:
        return to_json(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTuning(TuningResult):
    """What `tune` measured and predicts on this machine. threads_tried: by model, seconds of a token by number of
    threads.

    placement_tried: seconds of a draft token by device; empty if only one was tried. filled: by model, seconds of a
    token in a filled cache, and how many `tokens` that holds; empty if a cache cannot be rewound. memory: bytes by
    model. kept: the file that `run` and `compare` read; empty if it could not be written.
    """

    machine: str
    ctx: int
    threads: int
    threads_draft: int
    gpu_layers: int
    gpu_layers_draft: int
    threads_tried: dict[str, dict[int, float]]
    placement_tried: dict[str, float]
    filled: dict[str, float]
    memory: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePrediction(TuningResult):
    """The same for another machine. hardware: its `name`, `description`, `basis` and `source`."""

    hardware: dict[str, str]


def _tuned(settings: Settings) -> tuple[Settings, ModelPair]:
    """The settings to tune with, and their models. Raises UsageError if there is nothing to tune, IncompatiblePair for
    heads and for a draft model with another tokenizer.
    """
    if not settings.cascade.needs_model:
        problem = f"there is nothing to tune: the drafter {settings.drafter} uses no draft model"
        raise UsageError(problem, "Name a draft model with -md.")
    if settings.accept in LOSSY:
        problem = f"tune can't measure --accept {settings.accept}, which is lossy"
        raise UsageError(problem, "Use an exact rule: rejection or match.")
    head, drafter = settings.cascade.head, "self" if settings.cascade.drafts_itself else "model"
    ctx = settings.ctx or _CONTEXT
    settings = replace(settings, drafter=drafter, draft_tokens=AUTO, draft_min_p=0.0, max_tokens=_ANSWER, ctx=ctx)
    if head or (pair := check_pair(settings)).overlap is not None:
        problem = "tune can't measure heads" if head else "tune needs a draft model with the target's tokenizer"
        raise IncompatiblePair(problem, "For this pair, run and compare measure what they need themselves.")
    return settings, pair


def predict_for(settings: Settings, machine_name: str) -> HardwarePrediction:
    """Predict a pair's speeds from its recorded acceptance and another machine's costs. It measures nothing."""
    settings, pair = _tuned(settings)
    paths, machine = pair.paths, hardware.load(machine_name)
    kind_of_run = tuning.kind_of(settings.temperature == 0, settings.accept)
    path = recording_of(*paths, kind_of_run, setup_of_pair(pair, settings))
    if path is None:
        kind = "at temperature 0" if settings.temperature == 0 else f"with --accept {settings.accept}"
        raise SpecdecError(
            f"this pair has no recording {kind}",
            "Run specdec tune once, on any machine, with the same --temp and --accept.",
        )
    recording = acceptance_traces.read(path)
    recording.require(*paths)
    return HardwarePrediction(
        **_predicted(paths, recording, machine.costs, f"{machine_name}, at the costs of the models named above"),
        hardware={name: getattr(machine, name) for name in ("name", "description", "basis", "source")},
    )


def tune(
    settings: Settings,
    suite: str | None = None,
    system: str | None = None,
    raw: bool = False,
    seconds: float = 60.0,
    interrupt: Interrupt | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MeasuredTuning:
    """Time a pair, record its acceptance, predict its speedup, and save the result for `run` and `compare`.

    seconds: roughly how long. progress: called with the present stage. Raises Interrupted, and then saves nothing.
    """
    from specdec_cli.engine.contexts import memory_of
    from specdec_cli.engine.engine import one_session
    from specdec_cli.llama import library

    settings, pair = _tuned(settings)
    paths, interrupt = pair.paths, interrupt or Interrupt()
    user_files.require_writable(tuning.path_of(*paths).parent)
    settings, placement = place_draft(paths[1], settings, interrupt)
    with one_session(settings, interrupt, tune=False, pair=pair) as session:
        tuner = Tuner(session, suite, system, raw, seconds)
        progress("timing passes and threads")
        costs = tuner.time()
        progress("recording which draft tokens are accepted")
        recording = tuner.record()
        kind = tuning.kind_of(recording.greedy, settings.accept)
        models, ctx = session.models.all, session.models.target.open_kv.n_ctx
        threads, threads_draft = (model.threads for model in models[:2])
        place: dict[str, Any] = {
            "machine": library.machine(),
            "threads": threads,
            "threads_draft": threads_draft,
            "gpu_layers": settings.gpu_layers,
            "gpu_layers_draft": settings.gpu_layers_draft,
        }
        calibration = calibrate(recording.answers, recording.greedy)
        memory = tuple(asdict(part) for part in memory_of(session.models))
    if interrupt.is_set():
        raise Interrupted
    notes, kept = session.notes, ""
    try:
        found = Tuning(**place, costs=costs, calibrations={kind: calibration})
        path = tuning.save(*paths, found, setup_of_pair(pair, settings))
        acceptance_traces.write(path.with_suffix(f".{kind}.json.gz"), recording)
        kept = str(path)
    except SpecdecError as error:  # the measurement is still worth showing
        notes += (f"the measurement was not saved: {error}",)
    return MeasuredTuning(
        **_predicted(paths, recording, costs, "this machine"),
        **place,
        ctx=ctx,
        threads_tried=tuner.tried,
        placement_tried=placement,
        filled=tuner.filled,
        memory=memory,
        notes=notes,
        kept=kept,
    )


def _predicted(paths: tuple[Path, Path], recording: Recording, costs: Costs, where: str) -> dict[str, Any]:
    predictions = predict(recording.answers, costs, recording.greedy)
    return {
        "target": paths[0].name,
        "draft": paths[1].name,
        "greedy": recording.greedy,
        "recorded_tokens": n_recorded(recording.answers),
        "costs": costs,
        "predictions": tuple(predictions),
        "verdict": tuple(verdict(predictions, recording.answers, costs, recording.greedy, where)),
    }


class Tuner:
    """Measures an engine's pair. `seconds`: about how long, two thirds of it for acceptance."""

    def __init__(self, session: Session, suite: str | None, system: str | None, raw: bool, seconds: float) -> None:
        self._session, self._seconds, self._settings = session, seconds, session.settings
        self.tried: dict[str, dict[int, float]] = {}
        """Seconds of a single-token pass by number of threads, for `target` and `draft`."""
        self.filled: dict[str, float] = {}
        """Seconds of single-token passes in a filled cache, and how many tokens it held."""
        trained = session.pair.draft.count("context_length") if session.pair.draft else 0
        room = min(filter(None, (self._settings.ctx, trained))) - _ROOM
        prompts = tuning_prompts(session.pair.target_path, suite)
        self._prompts = fitting(session, session.settings, prompts, room, system, raw)
        if not self._prompts:
            problem = "every prompt is too long for the models' context"
            raise SpecdecError(problem, "Use shorter --prompts or a larger -c.")
        session.open(max(map(len, self._prompts.values())))
        session.require_drafts("tune needs the draft model. If it doesn't fit on the GPU with the target, use -ngld 0.")
        self._text = list(itertools.islice(itertools.cycle(itertools.chain(*self._prompts.values())), 600))

    def time(self) -> Costs:
        """Choose the numbers of threads, then measure the cost curves, and single tokens in a filled cache."""
        session, settings = self._session, self._settings
        target, draft = session.models.contexts
        threads = settings.threads or self._fastest("target", target, (1, 4))
        threads_draft = settings.threads_draft or settings.threads or self._fastest("draft", draft, (1,))
        session.models.use_threads(threads, threads_draft)
        costs = session.costs.of_pair(self._text, budget_s=self._seconds * 0.15)
        fill = min(target.n_ctx, draft.n_ctx) - 8
        if fill > 64 and target.rewinds and draft.rewinds:
            laps = {"target": self._seconds_after(fill, target), "draft": self._seconds_after(fill, draft)}
            self.filled = {"tokens": fill, **laps}
        return costs

    def _fastest(self, role: str, context: Context, sizes: tuple[int, ...]) -> int:
        """The number of threads with which passes of these sizes take the least time in all."""
        from specdec_cli.llama.pass_probes import pass_seconds

        cores = host.physical_cores()
        candidates = sorted({1, 2, 4, 8, 12, 16, 24, 32, cores} & set(range(1, cores + 1)))
        total = dict.fromkeys(candidates, 0.0)
        tried = self.tried[role] = dict.fromkeys(candidates, 0.0)
        for threads in [*candidates, *candidates[::-1]]:  # so that a machine that slows down favours none of them
            context.set_threads(threads)
            budget_s = self._seconds * 0.05 / len(candidates)
            laps = pass_seconds(context, self._text_for(context), sizes, len(sizes), budget_s)
            tried[threads] += laps[1] / 2
            total[threads] += sum(laps.values())
        return min(candidates, key=lambda threads: total[threads])

    def _seconds_after(self, fill: int, context: Context) -> float:
        """Seconds of a single-token pass with `fill` tokens in the cache: the median of five."""
        from specdec_cli.llama.pass_probes import pass_laps

        text = self._text_for(context)
        return median(pass_laps(context, text, (1,), 1, budget_s=0.0, needed_rounds=5, fill=fill, settled=1)[1])

    def _text_for(self, context: Context) -> list[int]:
        """A text to time passes with. For a draft with a smaller vocabulary, any tokens will do."""
        return [token % context.n_vocab for token in self._text]

    def record(self) -> Recording:
        """Answer prompts until the time is up; if a prediction needs it, up to _PATIENCE times as long."""
        settings, session = self._settings, self._session
        answers: list[Answer] = []
        began, budget_s = perf_counter(), self._seconds * 0.65
        # The categories in turn. At a temperature the prompts repeat, because the answers differ.
        for prompt, tokens in in_turn(self._prompts) * (1 if settings.temperature == 0 else 4):
            answer, _ = record(session, tokens, settings, (settings.seed or 0) + len(answers), prompt.category)
            if answer.accepted:
                answers.append(answer)
            spent_s = perf_counter() - began
            if spent_s > (budget_s if n_recorded(answers) >= _MIN_TOKENS else _PATIENCE * budget_s):
                break
        if n_recorded(answers) < _MIN_TOKENS:
            problem = "too few tokens were recorded to predict anything"
            raise SpecdecError(problem, "Use more --seconds or other --prompts.")
        return Recording(settings.temperature == 0, tuple(answers), acceptance_traces.identity(*session.pair.paths))


def place_draft(path: Path, settings: Settings, interrupt: Interrupt) -> tuple[Settings, dict[str, float]]:
    """Try the draft model on the GPU and on the CPU. Returns the settings for the faster one, and the
    seconds of a token on each.

    Without a GPU, or if the user has chosen, there is nothing to try.
    """
    from specdec_cli.llama import library, placing
    from specdec_cli.llama.context import LlamaContext
    from specdec_cli.llama.pass_probes import pass_seconds
    from specdec_cli.weights.model_loading import load_model

    if settings.gpu_layers_draft != -1 or settings.device_draft or not library.supports_gpu():
        return settings, {}
    threads = settings.threads_draft or settings.threads or host.physical_cores()
    placements = {"GPU": -1, "CPU": 0}
    laps: dict[str, float] = {}
    for device, layers in placements.items():
        with (
            suppress(SpecdecError),  # it may not fit beside the target
            closing(load_model(path, placing.whole(Placement(layers)), interrupt)) as model,
            closing(LlamaContext.open(model, _PLACEMENT_CONTEXT, 1, threads, interrupt)) as context,
        ):
            text = range(min(model.n_vocab, 9))  # a draft with a part of its target's tokens reads no text
            laps[device] = pass_seconds(context, text, (1,), needed=1, budget_s=1.0, needed_rounds=8)[1]
    layers = placements[min(laps, key=lambda device: laps[device])] if laps else -1
    return replace(settings, gpu_layers_draft=layers), laps
