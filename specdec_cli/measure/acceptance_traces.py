"""Recordings of what a draft model would have proposed, and of the texts themselves, as compressed JSON files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.engine.tuning import path_of
from specdec_cli.json_store import from_json
from specdec_cli.measure.simulator import Answer, Text
from specdec_cli.user_files import bundled_dir, parse_json, write_whole

_MOST_BYTES = 1 << 26
_FIX = "Record it again."
_Entry = TypeVar("_Entry", Answer, Text)
_Thousandths = list[Annotated[int, Meta(ge=0, le=1000)]]


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of one pair under one kind of sampling. about: file names and sizes, sampling, suite.

    answers: what the draft model had to say, if there was one. texts: tokens, for drafters without a model.
    """

    greedy: bool
    answers: tuple[Answer, ...]
    about: Mapping[str, Any]
    texts: tuple[Text, ...] = ()

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


@dataclass(frozen=True, slots=True)
class _PackedAnswer:
    """An answer as a file has it: probabilities in thousandths, and a 0 or a 1 for each place that stands."""

    category: str
    prompt_tokens: int
    confidence: _Thousandths
    stands: Annotated[str, Meta(pattern="^[01]+$")]
    astray: list[_Thousandths]

    @classmethod
    def of(cls, answer: Answer) -> _PackedAnswer:
        rows = [[round(p * 1000) for p in row] for row in (answer.confidence, *filter(None, answer.astray))]
        stands = "".join("01"[stands] for stands in answer.stands)
        return cls(answer.category, answer.prompt_tokens, rows[0], stands, rows[1:])

    def unpack(self) -> Answer:
        if len(self.confidence) != len(self.stands):
            raise ValueError("it says more of some places than of others")
        rows = (tuple([n / 1000 for n in row]) for row in (self.confidence, *self.astray))
        confidence, stands = next(rows), tuple(stands == "1" for stands in self.stands)
        astray = tuple(() if right else next(rows, ()) for right in stands)
        return Answer(self.category, self.prompt_tokens, confidence, stands, astray)


@dataclass(frozen=True, slots=True)
class _File:
    format: Literal[1]
    greedy: bool
    answers: list[_PackedAnswer]
    texts: tuple[Text, ...] = ()


def by_category(entries: Iterable[_Entry]) -> Mapping[str, list[_Entry]]:
    """Answers or texts by category, in order of appearance."""
    categories = defaultdict[str, list[_Entry]](list)
    for entry in entries:
        categories[entry.category].append(entry)
    return categories


def identity(target: Path, draft: Path | None) -> dict[str, Any]:
    """What a recording says of the models that it was made with."""
    paths = {"target": target, "draft": draft} if draft else {"target": target}
    sizes = {f"{role}_bytes": path.stat().st_size for role, path in paths.items()}
    return {role: path.name for role, path in paths.items()} | sizes


def write(path: Path, recording: Recording) -> None:
    """Write a recording; probabilities keep three digits. Raises SpecdecError if it cannot be written."""
    data = {"format": 1, "greedy": recording.greedy, **recording.about}
    data["answers"] = [asdict(_PackedAnswer.of(answer)) for answer in recording.answers]
    if recording.texts:
        data["texts"] = [asdict(text) for text in recording.texts]
    write_whole(path, gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))


def read(path: Path) -> Recording:
    """Read a recording; raises SpecdecError if the file is none."""
    try:
        with gzip.open(path) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError("it is too large")
        data = parse_json(text)
        record = from_json(data, _File)
        if not (record.answers or record.texts):
            raise ValueError("it holds no answers")
        if any(min(tokens, default=-1) < 0 for text in record.texts for tokens in (text.prompt, text.tokens)):
            raise ValueError("a text is empty, or holds what is no token")
        about = {key: value for key, value in data.items() if key not in _File.__dataclass_fields__}
        return Recording(record.greedy, tuple(answer.unpack() for answer in record.answers), about, record.texts)
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror or error}", _FIX) from None
    except (EOFError, ValueError, RecursionError, zlib.error) as error:
        raise SpecdecError(f"{path.name} is not a recording: {' '.join(str(error).split())}", _FIX) from None


def recording_of(target: Path, draft: Path, kind: str, setup: str = "") -> Path | None:
    """The recording of a pair, its own or a bundled one; `Recording.require` says if it is of these very models."""
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
