"""The settings of a run in one line, above its report: as they are, or as far as a recording has them."""

from collections.abc import Sequence
from pathlib import Path

from specdec_cli.decoding.rules import label
from specdec_cli.evaluation.recorded_settings import RecordedSettings


def settings_line(settings: RecordedSettings, more: Sequence[str] = ()) -> str:
    """Models, drafter and its options, sampling; then `more`."""
    drafter = settings.drafter or ("model" if settings.draft else "")
    parts = [_models(settings, drafter)] if settings.target else []
    if drafter == "none":
        parts.append("alone")
    elif drafter:
        parts += [f"k={settings.draft_tokens}"] if settings.draft_tokens is not None else []
        parts += [f"draft-min-p={settings.draft_min_p}"] if settings.draft_min_p else []
        parts += [f"tree={settings.tree}"] if settings.tree not in (None, 1) else []
        parts += [f"lookahead={settings.lookahead}"] if "lookahead" in drafter and settings.lookahead else []
    if settings.temp:
        parts.append(f"temp={settings.temp}")
        if settings.accept and (drafter != "none" or settings.accept == "coupled"):  # which shapes the baseline, too
            parts.append(f"accept={label(settings.accept)}")
        parts += [f"seed={settings.seed}"] if settings.seed is not None else []
    elif settings.temp is not None:
        parts.append("greedy")
    parts += ["bitwise"] if settings.bitwise else []
    return ", ".join([*parts, *more]).encode("utf-8", "replace").decode()  # a file's name need not be valid text


def _models(settings: RecordedSettings, drafter: str) -> str:
    """The target and what drafts for it, by their files where they have some."""
    target, draft, small = (Path(each or "").name for each in (settings.target, settings.draft, settings.draft_small))
    known = {"model": draft or "model", "self": f"self ({draft})" if draft else "self", "small": small or "small"}
    names = [target]
    for part in [] if drafter in ("", "none") else drafter.split("+"):
        outer, slower, inner = "<".join(reversed(part.split(">"))).partition("<")
        names.append(known.get(outer, outer) + slower + known.get(inner, inner))
    return " + ".join(names)
