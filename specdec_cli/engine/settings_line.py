"""The settings of a run in one line, above its report: as they are, or as far as a recording has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_cli.decoding.rules import label


def headline(settings: Mapping[str, Any], more: Sequence[str] = ()) -> str:
    """Models, drafter and its options, sampling; then `more`. Keys are those of `cli.settings.Settings`."""
    drafter = str(settings.get("drafter") or ("model" if settings.get("draft") else ""))
    alone = drafter == "none"
    parts = [_models(settings, drafter)] if settings.get("target") else []
    if alone:
        parts.append("alone")
    elif drafter:
        parts += [f"k={settings['draft_tokens']}"] if "draft_tokens" in settings else []
        parts += [f"draft-min-p={settings['draft_min_p']}"] if settings.get("draft_min_p") else []
        parts += [f"tree={settings['tree']}"] if settings.get("tree", 1) != 1 else []
        parts += [f"lookahead={settings['lookahead']}"] if "lookahead" in drafter and "lookahead" in settings else []
    if temp := settings.get("temp"):
        parts.append(f"temp={temp}")
        draws = settings.get("accept") == "coupled"  # which shapes the text of the target alone, too
        parts += [f"accept={label(str(settings['accept']))}"] if "accept" in settings and (draws or not alone) else []
        parts += [f"seed={settings['seed']}"] if settings.get("seed") is not None else []
    elif temp is not None:
        parts.append("greedy")
    parts += ["bitwise"] if settings.get("bitwise") else []
    return ", ".join([*parts, *more]).encode("utf-8", "replace").decode()  # a file's name need not be valid text


def _models(settings: Mapping[str, Any], drafter: str) -> str:
    """The target and what drafts for it, by their files where they have some."""
    draft, small = (_name(settings.get(key)) for key in ("draft", "draft_small"))
    known = {"model": draft or "model", "self": f"self ({draft})" if draft else "self", "small": small or "small"}
    names = [_name(settings["target"])]
    for part in [] if drafter in ("", "none") else drafter.split("+"):
        outer, slower, inner = "<".join(reversed(part.split(">"))).partition("<")
        names.append(known.get(outer, outer) + slower + known.get(inner, inner))
    return " + ".join(names)


def _name(path: object) -> str:
    return Path(str(path)).name if path else ""
