"""The arms of a comparison: what `--vs` and `--sweep` say, and the baselines they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from specdec_cli.decoding.errors import UsageError
from specdec_cli.drafters import drafts_itself, needs_model
from specdec_cli.engine.config import AUTO, Settings
from specdec_cli.engine.validation import validate
from specdec_cli.models.user_files import suggest

ALONE = "target alone"

_SHORT = {"k": "draft_tokens"}
_CUTS = ("top_k", "top_p", "min_p")
_SAMPLING = ("temp", *_CUTS, "repeat_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n")
_VARIABLE = ("draft_tokens", "draft_min_p", "tree", "lookahead", "drafter", "accept", *_SAMPLING)
"""What may differ between arms: nothing that would need other models, contexts or lengths of answer."""
_KINDS = {field.name: field.type for field in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of decoding. `baseline` names the arm that it is measured against; its own name for a baseline."""

    name: str
    settings: Settings
    baseline: str


def make_arms(base: Settings, versus: Sequence[str], sweeps: Sequence[str], draft_named: bool = False) -> list[Arm]:
    """Baselines first, then the settings as they are (unless swept), then those of --vs and --sweep.

    Every arm is measured against the target alone with the arm's own sampling. draft_named: whether the user named a
    draft model, which is then that of every arm. Raises UsageError on an arm that does not parse.
    """
    wanted: dict[str, Settings] = {}
    if not sweeps:
        wanted[_name_of(base)] = base
    for text in versus:
        wanted[text.strip()] = _changed(base, text, draft_named)
    for text in sweeps:
        key, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise UsageError(f"the sweep {text!r} does not parse", 'Write it as key=values: --sweep "k=1,2,4,8".')
        for value in values.split(","):
            wanted[f"{key.strip()}={value.strip()}"] = _changed(base, f"{key}={value}", draft_named)
    _require_one_draft(wanted.values(), draft_named)
    arms: dict[str, Arm] = {}
    for name, settings in wanted.items():
        validate(settings)
        baseline = _baseline_name(base, settings)
        if baseline not in arms:
            arms[baseline] = Arm(baseline, settings.alone(), baseline)
        if settings.drafter == "none" and name == _name_of(base):
            continue
        arms[name] = Arm(name, settings, baseline)
    found = [arm for arm in arms.values() if arm.name == arm.baseline]
    return found + [arm for arm in arms.values() if arm.name != arm.baseline]


def _require_one_draft(wanted: Iterable[Settings], draft_named: bool) -> None:
    """Refuse arms that need different draft models: one is loaded."""
    kinds = {drafts_itself(settings.drafter) for settings in wanted if needs_model(settings.drafter)}
    if len(kinds) > 1 and not draft_named:
        raise UsageError(
            "the arms would need two draft models: one for model, one for self",
            "Measure them in two comparisons (--save NAME, then --against NAME), or name one draft for both with -md.",
        )


def _name_of(settings: Settings) -> str:
    if settings.drafter == "none":
        return "drafter=none"
    drafter = "" if settings.drafter == "model" else f"{settings.drafter}, "
    name = f"{drafter}k={settings.draft_tokens}"
    name += f", draft-min-p={settings.draft_min_p:g}" if settings.draft_min_p else ""
    return f"{name}, tree={settings.tree}" if settings.tree > 1 else name


def _baseline_name(base: Settings, settings: Settings) -> str:
    """One baseline for each kind of sampling, named by what is special about it; greedy knows no cuts."""
    names = [name for name in _SAMPLING if settings.temp > 0 or name not in _CUTS]
    special = [
        f"{name.replace('_', '-')}={getattr(settings, name):g}"
        for name in names
        if getattr(settings, name) != getattr(base, name)
    ]
    if settings.temp > 0 and (settings.accept == "coupled") != (base.accept == "coupled"):  # it draws in another way
        special.append(f"accept={settings.accept}")
    return ", ".join(["alone", *special]) if special else ALONE


def _changed(base: Settings, text: str, draft_named: bool) -> Settings:
    """The settings with the changes of one arm, such as `k=8,temp=0.8`."""
    changes: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise UsageError(
                f"the arm {text!r} does not parse at {part!r}", 'Write it as key=value: --vs "k=4,temp=0.8".'
            )
        name = _SHORT.get(key, key.lstrip("-").replace("-", "_"))
        if name not in _VARIABLE:
            keys = [*_SHORT, *(key.replace("_", "-") for key in _VARIABLE)]
            raise UsageError(f"{key!r} in the arm {text!r} cannot vary between arms", suggest(key, keys, "What can"))
        changes[name] = _parsed(name, value, text)
    changed = replace(base, **changes)
    if drafts_itself(changed.drafter) and not drafts_itself(base.drafter) and not draft_named:
        return self_drafted(replace(changed, draft=None))
    return changed


def _parsed(name: str, value: str, text: str) -> Any:
    kind = "str" if value == AUTO and name == "draft_tokens" else str(_KINDS[name])
    try:
        return float(value) if "float" in kind else int(value) if "int" in kind else value
    except ValueError:
        what = "a number" if "float" in kind else "a whole number"
        raise UsageError(
            f"{value!r} in the arm {text!r} is not {what}", 'Write it as in --vs "k=4,temp=0.8".'
        ) from None
