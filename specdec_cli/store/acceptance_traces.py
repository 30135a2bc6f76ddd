"""Recordings of what a draft model would have proposed, and of the texts themselves, as compressed JSON files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.evaluation.simulator import Answer, Text

FORMAT = 1
_MOST_BYTES = 1 << 28
_MEND = "Record it again."
_Entry = TypeVar("_Entry", Answer, Text)


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of one pair under one kind of sampling. about: file names and sizes, sampling, suite.

    answers: what the draft model had to say of them. texts: their tokens, for drafters without a model. Either may be
    missing.
    """

    greedy: bool
    answers: tuple[Answer, ...]
    about: Mapping[str, Any]
    texts: tuple[Text, ...] = ()

    def by_category(self) -> dict[str, list[Answer]]:
        """The answers by category, in order of appearance."""
        return _by_category(self.answers)

    def texts_by_category(self) -> dict[str, list[Text]]:
        """The texts by category, in order of appearance."""
        return _by_category(self.texts)

    def require(self, target: Path, draft: Path) -> None:
        """Raise SpecdecError if this was recorded with other models, as far as names and sizes tell."""
        for role, path in (("target", target), ("draft", draft)):
            name, size = self.about.get(role, path.name), path.stat().st_size
            recorded = self.about.get(f"{role}_bytes", size)
            if (name, recorded) != (path.name, size):
                raise SpecdecError(
                    f"the recording is of another {role}: {name} of {recorded:,} bytes, not {path.name} of {size:,}",
                    "Run specdec tune on this pair to record it.",
                )


def identity(target: Path, draft: Path | None) -> dict[str, Any]:
    """What a recording says of the models that it was made with."""
    paths = {"target": target, "draft": draft}
    names = {role: path.name for role, path in paths.items() if path}
    return names | {f"{role}_bytes": path.stat().st_size for role, path in paths.items() if path}


def _by_category(entries: Iterable[_Entry]) -> dict[str, list[_Entry]]:
    found: dict[str, list[_Entry]] = {}
    for entry in entries:
        found.setdefault(entry.category, []).append(entry)
    return found


def write(path: Path, recording: Recording) -> None:
    """Write a recording; probabilities keep three digits."""
    data = {
        "format": FORMAT,
        "greedy": recording.greedy,
        **recording.about,
        "answers": [_answer_json(answer) for answer in recording.answers],
    }
    if recording.texts:
        data["texts"] = [asdict(text) for text in recording.texts]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or mend the folder.") from None


def read(path: Path) -> Recording:
    """Read a recording; raises SpecdecError if the file is none."""
    try:
        with gzip.open(path) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError("it is too large")
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}")
        answers = tuple(_answer(found) for found in data["answers"])
        texts = tuple(_text(found) for found in data.get("texts", ()))
        if not (answers or texts) or not all(answer.stands for answer in answers):
            raise ValueError("it holds an answer without a place, or none at all")
        about = {key: value for key, value in data.items() if key not in ("format", "greedy", "answers", "texts")}
        return Recording(bool(data["greedy"]), answers, about, texts)
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror or error}", _MEND) from None
    except (
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        zlib.error,
    ) as error:
        raise SpecdecError(f"{path.name} is not a recording: {' '.join(str(error).split())}", _MEND) from None


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "category": answer.category,
        "prompt_tokens": answer.prompt_tokens,
        "confidence": _packed(answer.confidence),
        "stands": "".join("01"[stands] for stands in answer.stands),
        "astray": [_packed(astray) for astray in answer.astray if astray],
    }


def _answer(data: dict[str, Any]) -> Answer:
    stands = tuple({"0": False, "1": True}[digit] for digit in data["stands"])
    confidence = _unpacked(data["confidence"])
    wrong = iter(data["astray"])
    astray = tuple(() if stands_here else _unpacked(next(wrong, [])) for stands_here in stands)
    if len(confidence) != len(stands):
        raise ValueError("it says more of some places than of others")
    return Answer(str(data["category"]), int(data["prompt_tokens"]), confidence, stands, astray)


def _text(data: dict[str, Any]) -> Text:
    prompt, tokens = (tuple(int(token) for token in data[name]) for name in ("prompt", "tokens"))
    if not prompt or not tokens or min(prompt + tokens) < 0:
        raise ValueError("a text is empty, or holds what is no token")
    return Text(str(data["category"]), prompt, tokens)


def _packed(probabilities: Sequence[float]) -> list[int]:
    return [round(p * 1000) for p in probabilities]


def _unpacked(thousandths: Sequence[int]) -> tuple[float, ...]:
    return tuple([min(max(int(n), 0), 1000) / 1000 for n in thousandths])
