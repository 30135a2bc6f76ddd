"""What forward passes cost on this machine, and which agree bit for bit: saved by an earlier start, or measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.costs import BUSY_RATIO, Curve
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.json_store import JsonStore, Points, digest, record_name
from specdec_cli.llama import host, kernels, library
from specdec_cli.llama.context import Context
from specdec_cli.llama.pass_probes import contexts_of, measure_agreement, pass_seconds
from specdec_cli.llama.threads import ThreadTuner
from specdec_cli.user_files import cache_dir

_VERIFY_SIZES = (1, 2, 4, 8, 3, 9, 16, 6, 12, 5, 17, 32)
_DRAFT_SIZES = (1, 8, 2, 32, 128, 512)
_REPEATED_SIZES, _REPEATED_S = (1, 3, 2, 4, 5), 0.15
_NEWS = 0.1
"""The difference, in log seconds, from which a run's time replaces a saved one."""
VERIFY_S, DRAFT_S = 0.25, 0.1
"""Seconds to measure each model for, roughly. The most important sizes are timed even if they take longer."""


def timing_key(threads: int, gpu_layers: int = -1, setup: str = "") -> TimingKey:
    """The current machine and build with these threads, GPU layers, devices and adapters."""
    versions = library.versions()
    build = f"llama.cpp {versions['llama.cpp']}, llama-cpp-python {versions['llama-cpp-python']}"
    flags = library.build_flags().strip() + ("" if kernels.verdict().extra_buffers else "; nothing repacked")
    files = digest(kernels.build(), 8)  # with other compiler options, it has the same version and flags
    return TimingKey(library.machine(), f"{build}; {flags}; {files}", threads, gpu_layers, setup)


def known_agreement(model: Path) -> Agreement | None:
    """Which passes of a model agree bit for bit with the usual threads; None if not measured."""
    with suppress(SpecdecError, OSError):
        kept = load_saved(model, timing_key(host.usual_threads()))
        return kept.agreement if kept else None
    return None


class PassCosts:
    """The costs of one model's passes. note: called with notes for the user. setup: a key for devices and adapters."""

    def __init__(
        self, path: Path, context: Context, gpu_layers: int, note: Callable[[str], None], setup: str = ""
    ) -> None:
        self.measured_s = 0.0
        """Seconds that measuring took."""
        self.thread_tuner: ThreadTuner | None = None
        """Reduces the threads, if it must, before anything is measured with too many."""
        self._path, self._context, self._note = path, context, note
        self._key = timing_key(context.threads, gpu_layers, setup)
        self._saved = self._load()
        self._news = False

    @property
    def agreement(self) -> Agreement | None:
        """Which passes agree bit for bit; None if not measured for this context and these threads."""
        kept, context = self._saved.agreement, self._context
        if kept is None or kept.threads != context.threads:
            return None
        return kept if max(kept.contexts) >= max(contexts_of(context.n_ctx)) else None

    @property
    def expected(self) -> dict[int, float]:
        """Known times: tokens in a pass -> seconds."""
        return {**self._saved.draft, **self._saved.verify}

    def follow_threads(self, anew: bool = False) -> None:
        """Switch to the saved costs for the context's threads. anew: start without any, to measure all again."""
        self.keep()
        self._key = replace(self._key, threads=self._context.threads)
        self._saved = SavedCosts() if anew else self._load()

    @property
    def singly(self) -> bool:
        """Whether a draft model should read two tokens in two passes. A GPU replays a pass of the size before it;
        another size is planned anew, and so is the pass after that, which takes longer than a pass of a small model.
        """
        known = self._saved.draft
        dear = not {1, 2} <= known.keys() or 3 * known[1] < 2 * known[2]
        return self._context.passes.model.on_gpu and dear

    def verify(self, text: Sequence[int], budget_s: float = VERIFY_S) -> Curve:
        """Seconds of the target's passes over n tokens, with all rows of logits."""
        known = self._saved.verify
        # With costs from a busy machine nothing would be drafted, and nothing would correct them.
        if 1 not in known or (known.get(2, 0.0) > BUSY_RATIO * known[1] and not self.measured_s):
            self._add(verify=self._timed(text, _VERIFY_SIZES, 4, budget_s, 1))
        return Curve(self._saved.verify)

    def repeated(self, text: Sequence[int], one_s: float) -> Curve | None:
        """Seconds of the target's passes over a few tokens, of the same size as the two before them, if one over a
        single token takes `one_s` seconds. None where that makes little difference: on CPUs, and if passes take long.
        """
        if not self._context.passes.model.on_gpu or one_s > _REPEATED_S / 10:
            return None
        if not self._saved.repeated:
            self._add(repeated=self._timed(text, _REPEATED_SIZES, 2, _REPEATED_S, 1, repeated=True))
        then = self._saved.repeated
        return Curve({n: seconds * one_s / then[1] for n, seconds in then.items()})

    def draft(self, text: Sequence[int], budget_s: float = DRAFT_S) -> Curve:
        """Seconds of a draft model's passes over n tokens, with one row of logits."""
        if not self._saved.draft:
            self._add(draft=self._timed(text, _DRAFT_SIZES, 2, budget_s, 3))
        return Curve(self._saved.draft)

    def measure_agreement(self, text: Sequence[int]) -> Agreement:
        """Which passes agree bit for bit. Measures it the first time, with a few hundred passes."""
        if self.thread_tuner is not None:
            self.thread_tuner.stop()  # another number of threads rounds differently; the next answer sets it again
        agreed = self.agreement
        if agreed is None:
            started = perf_counter()
            agreed = measure_agreement(self._context, text)
            self.measured_s += perf_counter() - started
            self._add(agreement=agreed)
        return agreed

    def learn(self, role: str, seconds: dict[int, float]) -> None:
        """Add times from a run: of sizes that weren't timed, and of those that differ clearly from the saved time."""
        what = "verify" if role == "target" else "draft"
        known = getattr(self._saved, what)
        new = {n: took for n, took in seconds.items() if n not in known or abs(math.log(took / known[n])) > _NEWS}
        if known and new:
            self._add(**{what: {**known, **new}})

    def keep(self) -> None:
        """Save the costs for the next start, if there are new ones. If that fails, a note says so."""
        if self._news:
            try:
                save(self._path, self._key, self._saved)
            except (SpecdecError, OSError) as error:
                self._note(f"pass times are measured at every start: {error}")
            self._news = False

    def _add(self, **news: Any) -> None:
        self._saved, self._news = replace(self._saved, **news), True

    def _load(self) -> SavedCosts:
        try:
            return load_saved(self._path, self._key) or SavedCosts()
        except (SpecdecError, OSError) as error:
            self._note(f"pass times are measured again: {error}")
            return SavedCosts()

    def _timed(
        self,
        text: Sequence[int],
        sizes: Sequence[int],
        needed: int,
        budget_s: float,
        rounds: int,
        repeated: bool = False,
    ) -> dict[int, float]:
        started = perf_counter()
        # Any tokens will do; the ids of a draft with another tokenizer may be too large.
        text = [token % self._context.n_vocab for token in text]
        if self.thread_tuner is not None:
            self._context.rewind(0)
            self.thread_tuner.try_fewer(text[0])
        seconds = pass_seconds(self._context, text, sizes, needed, budget_s, rounds, repeated)
        self.measured_s += perf_counter() - started
        return seconds


@dataclass(frozen=True, slots=True)
class TimingKey:
    """What pass times depend on: the machine's devices, the build of llama.cpp, CPU threads and GPU layers. setup: a
    key for devices and adapters, empty for the default ones.
    """

    machine: str
    build: str
    threads: int
    gpu_layers: int
    setup: str = ""


@dataclass(frozen=True, slots=True)
class SavedCosts:
    """Seconds of a pass over n tokens: verify, with all rows of logits; draft, with one row; repeated, like verify, and
    of the same size as the two passes before it.
    """

    verify: Points = field(default_factory=dict)
    draft: Points = field(default_factory=dict)
    repeated: Points = field(default_factory=dict)
    agreement: Agreement | None = None
    # What was measured, for readers of the file; `save` sets these.
    model: str = field(default="", compare=False)
    machine: str = field(default="", compare=False)
    build: str = field(default="", compare=False)


_COSTS = JsonStore(lambda: cache_dir() / "costs", SavedCosts, "They will be measured again.")


def path_of(model: Path, key: TimingKey) -> Path:
    """The record of a model file's costs. Its name depends on the file, its size and age, and where and how it runs."""
    about = model.stat()
    identity = (model.name, about.st_size, about.st_mtime_ns, *astuple(key))
    return _COSTS.path(record_name((model.stem,), repr(identity), digits=12))


def load_saved(model: Path, key: TimingKey) -> SavedCosts | None:
    """The saved costs of a model file. Raises SpecdecError if they are damaged."""
    return _COSTS.load(path_of(model, key).stem)


def save(model: Path, key: TimingKey, costs: SavedCosts) -> None:
    record = replace(costs, model=model.name, machine=key.machine, build=key.build)
    _COSTS.save(path_of(model, key).stem, record)
