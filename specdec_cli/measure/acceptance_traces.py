"""Acceptance traces: what a draft model would have proposed at every position of the target's answers, for simulation.

They are stored as compressed JSON files, with the texts, for drafters that need no model.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from specdec_cli.decoding import rules
from specdec_cli.decoding.accept import residual
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.sampling import Row, confidence
from specdec_cli.decoding.types import NO_DRAFT, Verdict
from specdec_cli.json_store import from_json
from specdec_cli.measure.simulate import AHEAD, Answer, Text
from specdec_cli.user_files import bundled_dir, parse_json, write_whole
from specdec_cli.weights.tuning import path_of

if TYPE_CHECKING:
    from specdec_cli.engine.session import Session
    from specdec_cli.settings.settings import Settings

_MAX_BYTES = 1 << 26
_FIX = "Record it again."
_Thousandths = list[Annotated[int, Meta(ge=0, le=1000)]]


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of one pair under one kind of sampling. about: file names and sizes, sampling, suite.

    answers: what the draft model would have proposed, if there was one. texts: tokens, for drafters without a model.
    """

    greedy: bool
    answers: tuple[Answer, ...]
    about: Mapping[str, Any]
    texts: tuple[Text, ...] = ()

    def require(self, target: Path, draft: Path) -> None:
        """Raise SpecdecError if this was recorded with models of other names or sizes."""
        for role, path in (("target", target), ("draft", draft)):
            name, size = self.about.get(role, path.name), path.stat().st_size
            recorded = self.about.get(f"{role}_bytes", size)
            if (name, recorded) != (path.name, size):
                raise SpecdecError(
                    f"the recording used another {role}: {name} of {recorded:,} bytes, not {path.name} of {size:,}",
                    "Run specdec tune on this pair to record it.",
                )


@dataclass(frozen=True, slots=True)
class _PackedAnswer:
    """An answer as stored: probabilities in thousandths, and for each position a 1 if the draft's token is accepted."""

    category: str
    prompt_tokens: int
    confidence: _Thousandths
    stands: Annotated[str, Meta(pattern="^[01]+$")]
    astray: list[_Thousandths]

    @classmethod
    def of(cls, answer: Answer) -> _PackedAnswer:
        rows = [[round(p * 1000) for p in row] for row in (answer.confidence, *filter(None, answer.after_rejection))]
        accepted = "".join("01"[right] for right in answer.accepted)
        return cls(answer.category, answer.prompt_tokens, rows[0], accepted, rows[1:])

    def unpack(self) -> Answer:
        if len(self.confidence) != len(self.stands):
            raise ValueError("its lists have different lengths")
        rows = (tuple([n / 1000 for n in row]) for row in (self.confidence, *self.astray))
        confidence, accepted = next(rows), tuple(digit == "1" for digit in self.stands)
        after_rejection = tuple(() if right else next(rows, ()) for right in accepted)
        return Answer(self.category, self.prompt_tokens, confidence, accepted, after_rejection)


@dataclass(frozen=True, slots=True)
class _File:
    format: Literal[1]
    greedy: bool
    answers: list[_PackedAnswer]
    texts: tuple[Text, ...] = ()


def identity(target: Path, draft: Path) -> dict[str, Any]:
    """What a recording stores about the models that it was made with."""
    sizes = {"target_bytes": target.stat().st_size, "draft_bytes": draft.stat().st_size}
    return {"target": target.name, "draft": draft.name, **sizes}


def write(path: Path, recording: Recording) -> None:
    """Write a recording; probabilities keep three digits. Raises SpecdecError if it can't be written."""
    data = {"format": 1, "greedy": recording.greedy, **recording.about}
    data["answers"] = [asdict(_PackedAnswer.of(answer)) for answer in recording.answers]
    if recording.texts:
        data["texts"] = [asdict(text) for text in recording.texts]
    write_whole(path, gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))


def read(path: Path) -> Recording:
    """Read a recording. Raises SpecdecError if the file isn't one."""
    try:
        with gzip.open(path) as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ValueError("it is too large")
        data = parse_json(text)
        record = from_json(data, _File)
        if not (record.answers or record.texts):
            raise ValueError("it contains no answers")
        if any(min(tokens, default=-1) < 0 for text in record.texts for tokens in (text.prompt, text.tokens)):
            raise ValueError("a text is empty, or has a negative token id")
        about = {key: value for key, value in data.items() if key not in _File.__dataclass_fields__}
        return Recording(record.greedy, tuple(answer.unpack() for answer in record.answers), about, record.texts)
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror or error}", _FIX) from None
    except (EOFError, ValueError, RecursionError, zlib.error) as error:
        raise SpecdecError(f"{path.name} is not a recording: {' '.join(str(error).split())}", _FIX) from None


def recording_of(target: Path, draft: Path, kind: str, setup: str = "") -> Path | None:
    """The recording of a pair, its own or a bundled one. `Recording.require` checks that the models match."""
    own = path_of(target, draft, setup).with_suffix(f".{kind}.json.gz")
    if own.exists():
        return own
    if setup:
        return None
    if target.parent == draft.parent and bundled_dir() in target.parents:
        bundled = target.parent / "recordings" / f"{kind}.json.gz"
        return bundled if bundled.exists() else None
    for path in sorted((bundled_dir() / "recordings").glob(f"*/{kind}.json.gz")):
        about = read(path).about
        if (about.get("target"), about.get("draft")) == (target.name, draft.name):
            return path
    return None


def record(
    session: Session, prompt: Sequence[int], settings: Settings, seed: int, category: str
) -> tuple[Answer, list[int]]:
    """Let the target answer alone, and ask the draft model at each position. Returns the answer's record and tokens.

    An answer that falls into a loop, as greedy answers of small models do, is recorded up to there. At a temperature
    with `rejection`, the draft's token x is drawn from q so that it agrees with the target's y as often as speculative
    sampling accepts: x = y with probability min(1, q(y) / p(y)), otherwise x comes from max(0, q - p). With `coupled`,
    both are drawn with the same noise.
    """
    places, tokens = _Recorder(session, settings, seed).record(list(prompt))
    columns = tuple(zip(*places, strict=True)) or ((), (), ())
    return Answer(category, len(prompt), *columns), tokens


_DRAWING = ("rejection", "coupled")
"""Rules for which the draft's token is drawn from q; for the others, it is the most likely one."""
_Place = tuple[float, bool, tuple[float, ...]]
"""One position, as in `Answer`: the draft's confidence, whether its token is accepted, and, if not, its confidences in
the tokens that it would draft next."""


class _Recorder:
    def __init__(self, session: Session, settings: Settings, seed: int) -> None:
        from specdec_cli.llama.target import LlamaTarget

        draft = session.models.draft
        if draft is None or draft.draft_model is None:
            raise RuntimeError("there is no draft model")
        self._draft, self._target = draft.draft_model, LlamaTarget(session.models.target.open_kv)
        self._is_end = session.models.target.model.is_end
        self._n_shared = session.pair.n_shared
        self._max_tokens = settings.max_tokens
        self._rule = settings.accept
        self._sampler = rules.sampler_of(self._rule, settings, seed)
        self._target_rng = np.random.default_rng(seed)
        self._draft_rng = np.random.default_rng((seed, 1))

    def record(self, context: list[int]) -> tuple[list[_Place], list[int]]:
        """The positions before a loop, and the answer's tokens."""
        prompt, places = len(context), list[_Place]()
        self._sampler.follow(context)
        _, token = self._next(self._target.prefill(context)[0])
        self._draft.rewind(0)
        self._draft.decode(context)
        room = min(self._target.n_ctx, self._draft.n_ctx) - AHEAD
        while len(context) - prompt < self._max_tokens and len(context) < room and not self._is_end(token):
            context.append(token)
            logits = self._target.verify(token, NO_DRAFT)
            self._target.commit(Verdict((), token, "plain"))
            row = self._draft.decode((token,))[0, : self._n_shared].copy()  # `_go_on` overwrites it
            p, token = self._next(logits[0])
            sure, wrong = self._guess(row, p, token)
            places.append((sure, wrong is None, () if wrong is None else self._go_on(wrong)))
        tokens = context[prompt:]
        return places[: before_a_loop([*tokens, token])], tokens

    def _next(self, row: Row) -> tuple[Categorical | None, int]:
        """The target's distribution, None if greedy, and its token."""
        if self._sampler.greedy:
            return None, self._sampler.argmax(row)
        p = self._sampler.categorical(row)
        return p, self._sampler.draw(p, 0, self._target_rng)

    def _guess(self, row: Row, p: Categorical | None, token: int) -> tuple[float, int | None]:
        """The draft's confidence at a position, and the token that it proposes; None: the target's token."""
        sampler, rng = self._sampler, self._draft_rng
        if p is None or self._rule not in _DRAWING:
            sure, guess = confidence(row), sampler.argmax(row)
        else:
            q = sampler.categorical(row)
            sure = float(q.probs.max())
            if self._rule == "coupled":
                guess = sampler.draw(q, 0, rng)
            else:
                guess = token if rng.random() * p.prob(token) < q.prob(token) else residual(q, p).draw(rng)
        return sure, None if guess == token else guess

    def _go_on(self, token: int) -> tuple[float, ...]:
        draft, sampler = self._draft, self._sampler
        start = draft.length
        draft.begin_draft()
        sure: list[float] = []
        ahead = [token]
        while len(sure) < AHEAD - 1:
            row = draft.decode((ahead[-1],))[0, : self._n_shared]
            if self._rule in _DRAWING and not sampler.greedy:
                q = sampler.categorical(row, ahead)
                sure.append(float(q.probs.max()))
                ahead.append(sampler.draw(q, len(ahead), self._draft_rng))
            else:
                sure.append(confidence(row))
                ahead.append(sampler.argmax(row, ahead))
        draft.end_draft(start)
        return tuple(sure)


def before_a_loop(tokens: Sequence[int]) -> int:
    """How many tokens to keep before a loop: a sequence that occurs three times in a row, over at least twelve tokens,
    is kept once.
    """
    for end in range(12, len(tokens) + 1):
        for period in range(1, end // 3 + 1):
            times = 3 if period > 3 else -(-12 // period)
            last = tokens[end - period : end]
            if all(tokens[end - (i + 1) * period : end - i * period] == last for i in range(1, times)):
                return end - (times - 1) * period
    return len(tokens)
