"""The variants of a comparison: what `--vs` and `--sweep` say, and the baselines they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.options import SamplingOptions, options_of
from specdec_cli.measure.trials import Variant
from specdec_cli.pairs.config_layers import with_made_draft
from specdec_cli.settings.options import AUTO, SpeculativeConfig, flag_of, name_of
from specdec_cli.settings.settings import Settings, check_value
from specdec_cli.user_files import suggest

ALONE = "target alone"

_CUTS = ("top_k", "top_p", "min_p")
_SAMPLING = options_of(SamplingOptions)
_VARIABLE = {name for name in options_of(SpeculativeConfig) if name not in ("bitwise", "ngram_corpus")} | {*_SAMPLING}
"""What may differ between variants: nothing that needs other models, contexts or answer lengths."""


def parse_variants(
    base: Settings, versus: Iterable[str], sweeps: Sequence[str], draft_named: bool = False
) -> list[Variant[Settings]]:
    """The baselines, then the user's settings (unless there is a sweep), then the variants of --vs and --sweep.

    A sweep of lengths ends with k=auto. A name says the drafter unless it is `model`. Each variant is measured against
    the target alone with the same sampling. draft_named: whether the user named a draft model, which all variants then
    use. Raises UsageError on a variant that doesn't parse, or if no variant drafts.
    """
    named: dict[str, Settings] = {} if sweeps else {_name_of(base): base}
    for text in versus:
        settings = _changed(base, text, draft_named)
        named[_with_drafter(text.strip(), settings)] = settings
    for text in sweeps:
        key, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise UsageError(f"the sweep {text!r} does not parse", 'Write it as key=values: --sweep "k=1,2,4,8".')
        key = key.strip()
        each = [value.strip() for value in values.split(",")]
        for value in each + [AUTO] * (name_of(key) == "draft_tokens" and AUTO not in each and base.drafter != "none"):
            settings = _changed(base, f"{key}={value}", draft_named)
            named[_with_drafter(f"{key}={value}", settings)] = settings
    if all(settings.drafter == "none" for settings in named.values()):
        problem = "there is nothing to compare: the target alone is measured anyway"
        raise UsageError(problem, "Leave out --drafter none, or add a variant with a drafter: --vs drafter=ngram.")
    _require_one_draft(named.values(), draft_named)
    found, own = with_baselines(base, named), _name_of(base)
    return [each for each in found if each.is_baseline or each.settings.drafter != "none" or each.name != own]


def with_baselines(base: Settings, named: Mapping[str, Settings]) -> list[Variant[Settings]]:
    """The baselines that these variants need, and then the variants. A baseline is the target alone with its variants'
    sampling. Raises UsageError if a variant has a baseline's name.
    """
    baselines: dict[str, Variant[Settings]] = {}
    variants = []
    for name, settings in named.items():
        alone = settings.alone()
        baseline = _baseline_name(base, alone)
        baselines.setdefault(baseline, Variant(baseline, baseline, alone))
        variants.append(Variant(name, baseline, settings))
    if taken := baselines.keys() & named.keys():
        raise UsageError(f"no variant can be named {taken.pop()!r}: it's a baseline", "Choose another name.")
    return [*baselines.values(), *variants]


def _require_one_draft(drafting: Iterable[Settings], draft_named: bool) -> None:
    """Refuse variants that need different draft models: one is loaded."""
    cascades = [settings.cascade for settings in drafting if settings.cascade.needs_model]
    kinds = {cascade.head or ("self" if cascade.drafts_itself and not draft_named else "model") for cascade in cascades}
    if len(kinds) > 1:
        raise UsageError(
            f"the variants would need several draft models: for {' and '.join(sorted(kinds))}",
            "Run compare for each; each gives its speedup over the target alone. -md can name one for model and self.",
        )


def _name_of(settings: Settings) -> str:
    if settings.drafter == "none":
        return "drafter=none"
    drafter = "" if settings.drafter == "model" else f"{settings.drafter}, "
    name = f"{drafter}k={settings.draft_tokens}"
    name += f", draft-min-p={settings.draft_min_p:g}" if settings.draft_min_p else ""
    return f"{name}, tree={settings.tree}" if settings.tree > 1 else name


def _with_drafter(text: str, settings: Settings) -> str:
    """A variant as the user wrote it, with its drafter in front if the text doesn't name it."""
    unsaid = settings.drafter not in ("model", "none") and "drafter" not in text
    return f"{settings.drafter}, {text}" if unsaid else text


def _baseline_name(base: Settings, settings: Settings) -> str:
    """The name of the baseline with the same sampling. It shows how that differs from the user's; greedy sampling
    ignores top-k, top-p and min-p.
    """
    special = [
        f"{flag_of(name)}={getattr(settings, name):g}"
        for name in _SAMPLING
        if getattr(settings, name) != getattr(base, name) and (settings.temperature > 0 or name not in _CUTS)
    ]
    draws_otherwise = (settings.accept == "coupled") != (base.accept == "coupled")
    if settings.temperature > 0 and draws_otherwise:
        special.append(f"accept={settings.accept}")
    if settings.bitwise != base.bitwise:
        special.append(f"bitwise={str(settings.bitwise).lower()}")
    return ", ".join(["alone", *special]) if special else ALONE


def _changed(base: Settings, text: str, draft_named: bool) -> Settings:
    """The settings with the changes of one variant, such as `k=8,temp=0.8`."""
    changes: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (side.strip() for side in part.partition("="))
        if not (equals and key and value):
            problem = f"the variant {text!r} does not parse at {part!r}"
            raise UsageError(problem, 'Write it as key=value: --vs "k=4,temp=0.8".')
        name = name_of(key)
        if name not in _VARIABLE:
            keys = ["k", *map(flag_of, sorted(_VARIABLE))]
            raise UsageError(f"{key!r} cannot differ between variants, as in {text!r}", suggest(key, keys, "These can"))
        changes[name] = check_value(name, value, text=True)
    if changes.get("drafter") == AUTO:
        changes["drafter"] = base.cascade.auto(base.draft is not None)
    changed = replace(base, **changes)
    if changed.cascade.drafts_itself and not base.cascade.drafts_itself and not draft_named:
        return with_made_draft(replace(changed, draft=None))
    return changed
