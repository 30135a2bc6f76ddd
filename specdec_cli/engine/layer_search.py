"""The search behind `draft prune --search`: which layers the target can do without, by measured agreement.

Greedy: of the layers left, the one whose loss costs least is dropped, again and again. Agreement is how often the rest
would propose, at every place of some of the target's own greedy answers, the token that stands there: one pass over
each answer with all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.engine import prompt as prompt_text
from specdec_cli.engine.acceptance_recorder import before_a_loop
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.models import suites
from specdec_cli.models.gguf_header import Header
from specdec_cli.models.layer_skipping import SkippableCopy

_PROMPTS = 8
_ANSWER = 48
_LONGEST_PROMPT = 256
_LEAST_TOKENS = 64
"""Places below which agreement is anybody's guess."""
_TRIED = 6
"""Layers tried for each one dropped, but for the first: those that cost least when last tried. Trying all would take
the square of their number."""


@dataclass(frozen=True, slots=True)
class Round:
    """What is left after a layer more was dropped; `dropped` is None while all are there. seconds: of one trial."""

    kept: tuple[int, ...]
    dropped: int | None
    agreement: float
    seconds: float


class LayerSearch:
    """Loads the target once, for its answers; raises SpecdecError if they are too short to measure anything by."""

    def __init__(
        self, target: Path, header: Header, suite: str | None, threads: int, gpu_layers: int, interrupt: Interrupt
    ) -> None:
        self._threads, self._gpu_layers, self._interrupt = threads, gpu_layers, interrupt
        self._texts: list[tuple[list[int], list[int]]] = []  # of each prompt its tokens, and those of its answer
        prompts = suites.select(suites.load(suite or "python"), limit=_PROMPTS)
        with closing(Model(target, gpu_layers, interrupt)) as model:
            longest = min(_LONGEST_PROMPT, (model.n_ctx_train or _LONGEST_PROMPT + _ANSWER) - _ANSWER)
            self._n_ctx = longest + _ANSWER
            with closing(self._context(model, 1)) as context:
                for prompt in prompts:
                    tokens, _ = prompt_text.tokenize(prompt.text, None, False, model, header)
                    if len(tokens) <= longest and (answer := self._answer(tokens, model, context)):
                        self._texts.append((tokens, answer))
        self.n_tokens = sum(len(answer) for _, answer in self._texts)
        if self.n_tokens < _LEAST_TOKENS:
            raise SpecdecError(
                f"the target's answers have {self.n_tokens} tokens in all, too few to choose layers by",
                f"Give other --prompts: some of up to {longest} tokens, with answers longer than a word.",
            )

    @property
    def n_prompts(self) -> int:
        return len(self._texts)

    def trials(self, layers: int, keep: int) -> int:
        """How often agreement will be measured."""
        return 1 + layers + sum(min(_TRIED, left) for left in range(keep + 1, layers))

    def run(self, copy: SkippableCopy, layers: int, keep: int, tell: Callable[[Round], None]) -> list[Round]:
        """Drop layer after layer until `keep` are left."""
        kept = tuple(range(layers))
        when_dropped = dict.fromkeys(kept, 1.0)
        rounds: list[Round] = []
        agreement, seconds = self._timed(copy)
        dropped: int | None = None
        while True:
            rounds.append(Round(kept, dropped, agreement, seconds))
            tell(rounds[-1])
            if len(kept) == keep:
                return rounds
            most = len(kept) if len(kept) == layers else _TRIED
            for layer in sorted(kept, key=lambda layer: -when_dropped[layer])[:most]:
                with copy.without(layer):
                    when_dropped[layer], seconds = self._timed(copy)
            dropped = max(kept, key=lambda layer: when_dropped[layer])
            agreement = when_dropped.pop(dropped)
            kept = tuple(layer for layer in kept if layer != dropped)
            copy.drop(dropped)

    def _timed(self, copy: SkippableCopy) -> tuple[float, float]:
        """How often the copy agrees with the target, and how long it took to find out."""
        started = perf_counter()
        agreed = 0
        with (
            closing(Model(copy.path, self._gpu_layers, self._interrupt)) as model,
            closing(self._context(model, _ANSWER)) as context,
        ):
            for prompt, answer in self._texts:
                context.rewind(0)
                if len(prompt) > 1:
                    context.decode(prompt[:-1])
                rows = context.decode([prompt[-1], *answer[:-1]], all_rows=True)
                agreed += int((rows.argmax(axis=1) == answer).sum())
        return agreed / self.n_tokens, perf_counter() - started

    def _context(self, model: Model, rows: int) -> LlamaContext:
        return LlamaContext(model, self._n_ctx, rows, self._threads, self._interrupt)

    def _answer(self, prompt: Sequence[int], model: Model, context: LlamaContext) -> list[int]:
        """The target's own greedy answer, up to where it begins to repeat itself."""
        context.rewind(0)
        token = int(context.decode(prompt)[0].argmax())
        answer = [token]
        while len(answer) < _ANSWER and not model.is_end(token):
            token = int(context.decode((token,))[0].argmax())
            answer.append(token)
        return answer[: before_a_loop(answer)]
