"""Kept results of comparisons: JSON files in the user's data folder."""

from __future__ import annotations

import json
import re
import statistics
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import platformdirs

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.user_files import read_bytes, require_writable, suggest, write_whole

if TYPE_CHECKING:
    from specdec_cli.measure.compare import ComparisonResult

_PLACE: dict[str, Any] = dict.fromkeys(
    (
        *("target", "draft", "threads", "ctx", "gpu_layers", "gpu_layers_draft"),
        *("device", "device_draft", "tensor_split", "rpc", "rpc_insecure"),
    )
)
"""Settings that say where a variant ran, and not how it decoded."""


@dataclass(frozen=True, slots=True)
class Change:
    """A variant in two results: its median tokens per second then and now, and how many times as fast it is now."""

    name: str
    then: float
    now: float
    ratio: Interval


def changes(before: ComparisonResult, result: ComparisonResult) -> list[Change]:
    """Of the variants whose settings are the same in both results, over the prompts that both have."""
    old, found = {each.name: _decoding(each.settings) for each in before.variants}, []
    for each in result.variants:
        now, then = result.speeds(each.name), before.speeds(each.name)
        common = sorted(now.keys() & then.keys())
        ratio = geometric_interval([now[prompt] / then[prompt] for prompt in common])
        if ratio and _decoding(each.settings) == old.get(each.name):
            speed_then, speed_now = (statistics.median(speeds[prompt] for prompt in common) for speeds in (then, now))
            found.append(Change(each.name, speed_then, speed_now, ratio))
    return found


def _decoding(settings: RecordedSettings) -> RecordedSettings:
    """The settings but for where they ran. Older results do not name `bitwise`."""
    return replace(settings, **_PLACE, seed=None, bitwise=bool(settings.bitwise))


def path_of(name: str) -> Path:
    """The file of a kept result; raises UsageError on a name that is none."""
    if not re.fullmatch(r"[\w.-]{1,100}", name) or name.startswith(".") or name.endswith(".json"):
        raise UsageError(f"{name!r} cannot be a result's name", "Use letters, digits, '.', '_' and '-', no ending.")
    return _folder() / f"{name}.json"


def kept() -> list[tuple[str, datetime]]:
    """Names of the kept results and when each was taken, the oldest first."""
    entries = []
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError, OverflowError):  # a link to nothing, a time that no calendar has
            entries.append((path.stem, datetime.fromtimestamp(path.stat().st_mtime)))
    return sorted(entries, key=lambda entry: entry[1])


def require_place(name: str) -> None:
    """Raise what `store` would, now rather than after minutes of measuring."""
    path = path_of(name)
    require_writable(path.parent)
    if path.is_dir():
        raise SpecdecError(f"cannot write {path}: it is a folder", "Use another name.")


def store(name: str, result: ComparisonResult) -> None:
    """Keep a result, in place of an older one of that name; raises SpecdecError if the disk does not take it."""
    write_whole(path_of(name), json.dumps(result.to_json()))


def load(name: str) -> ComparisonResult:
    """A kept result by name, or any file that `compare --json` or `--save` made. Raises UsageError if it is not there,
    SpecdecError if it is no result.
    """
    from specdec_cli.measure.compare import ComparisonResult

    path = Path(name) if name.endswith(".json") else path_of(name)
    try:
        return ComparisonResult.from_json(read_bytes(path))
    except FileNotFoundError:
        hint = suggest(name, [known for known, _ in kept()], "Kept results")
        raise UsageError(f"there is no kept result {name!r}", hint) from None
    except msgspec.ValidationError:
        raise SpecdecError(
            f"{path.name} is not the result of a comparison", "Use what --save or --json wrote."
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name another result.") from None
    except (ValueError, RecursionError) as error:
        raise SpecdecError(f"cannot read {path}: {' '.join(str(error).split())}", "Name another result.") from None


def _folder() -> Path:
    return platformdirs.user_data_path("specdec") / "comparisons"
