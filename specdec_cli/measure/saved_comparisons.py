"""Saved results of comparisons: JSON files in the user's data folder."""

from __future__ import annotations

import json
import statistics
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.measure.recorded_settings import RecordedSettings
from specdec_cli.user_files import data_dir, read_bytes, require_name, require_writable, suggest, write_whole

if TYPE_CHECKING:
    from specdec_cli.measure.compare import ComparisonResult

_MACHINE_SETTINGS: dict[str, Any] = dict.fromkeys(
    (
        *("target", "draft", "threads", "threads_draft", "ctx", "gpu_layers", "gpu_layers_draft"),
        *("device", "device_draft", "tensor_split", "rpc", "rpc_insecure"),
    )
)
"""Settings that say where a variant ran, and not how it decoded."""
_DRAFTING: dict[str, Any] = dict.fromkeys(
    ("draft_small", "draft_tokens", "draft_min_p", "draft_window", "tree", "lookahead", "prediction")
)
"""Settings that change nothing without drafts."""


@dataclass(frozen=True, slots=True)
class Change:
    """A variant in two results: its tokens per second then and now, and the ratio of the two.

    The speeds are geometric means over prompts, so `now / then` is the mean of the ratio.
    """

    name: str
    then: float
    now: float
    ratio: Interval


def changes(before: ComparisonResult, result: ComparisonResult) -> list[Change]:
    """The variants with the same settings in both results, over the prompts that both have."""
    old, found = {each.name: _decoding(each.settings) for each in before.variants}, []
    for each in result.variants:
        now, then = result.speeds(each.name), before.speeds(each.name)
        common = sorted(now.keys() & then.keys())
        ratio = geometric_interval([now[prompt] / then[prompt] for prompt in common])
        if ratio and _decoding(each.settings) == old.get(each.name):
            speed_then, speed_now = (
                statistics.geometric_mean(each[prompt] for prompt in common) for each in (then, now)
            )
            found.append(Change(each.name, speed_then, speed_now, ratio))
    return found


def _decoding(settings: RecordedSettings) -> RecordedSettings:
    """The settings that matter: not where they ran, the second draft model's folder, or how to draft if nothing does.
    Older results lack `bitwise`.
    """
    if settings.drafter == "none":  # a baseline has those of the first variant that it belongs to
        coupled = settings.accept == "coupled" and settings.temperature
        settings = replace(settings, **{**_DRAFTING, "accept": "coupled" if coupled else None})
    small = settings.draft_small and Path(settings.draft_small).name
    return replace(settings, **_MACHINE_SETTINGS, seed=None, bitwise=bool(settings.bitwise), draft_small=small)


def path_of(name: str) -> Path:
    """The file of a saved result. Raises UsageError if the name can't be used."""
    require_name(name, "a result", ".json")
    return _folder() / f"{name}.json"


def kept() -> list[tuple[str, datetime]]:
    """Names of the saved results and when each was saved, the oldest first."""
    entries = []
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError, OverflowError):  # a broken link, a time out of range
            entries.append((path.stem, datetime.fromtimestamp(path.stat().st_mtime)))
    return sorted(entries, key=lambda entry: entry[1])


def require_writable_file(name: str) -> None:
    """Raise what `store` would raise, before minutes of measuring."""
    path = path_of(name)
    require_writable(path.parent)
    if path.is_dir():
        raise SpecdecError(f"cannot write {path}: it is a folder", "Use another name.")


def store(name: str, result: ComparisonResult) -> None:
    """Save a result and replace an older one of that name. Raises SpecdecError if it can't be written."""
    write_whole(path_of(name), json.dumps(result.to_json()))


def load(name: str) -> ComparisonResult:
    """A saved result by name, or any .json file that `compare --json` or `--save` wrote.

    Raises UsageError if there is none, SpecdecError if the file isn't a result.
    """
    from specdec_cli.measure.compare import ComparisonResult

    path = Path(name) if name.endswith(".json") else path_of(name)
    try:
        return ComparisonResult.from_json(read_bytes(path))
    except FileNotFoundError:
        fix = suggest(name, [known for known, _ in kept()], "Saved results")
        raise UsageError(f"there is no saved result {name!r}", fix) from None
    except msgspec.ValidationError:
        raise SpecdecError(
            f"{path.name} is not the result of a comparison", "Use a file that --save or --json wrote."
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Use another result.") from None
    except (ValueError, RecursionError) as error:
        raise SpecdecError(f"cannot read {path}: {' '.join(str(error).split())}", "Use another result.") from None


def _folder() -> Path:
    return data_dir() / "comparisons"
