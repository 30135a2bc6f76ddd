"""Merges settings from their layers: flag or SPECDEC_* variable, config.yaml, profile, default."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from specdec_cli import drafters
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.head_files import head_alone, head_of
from specdec_cli.gguf.reader import read_header
from specdec_cli.pairs import made_drafts, profiles, pulled_pairs
from specdec_cli.pairs.hub.cache import locate
from specdec_cli.pairs.profiles import Profile
from specdec_cli.settings.options import AUTO, OPTIONS, name_of
from specdec_cli.settings.settings import Settings, check_value
from specdec_cli.user_files import check_keys, config_dir, expanded, read_mapping

_Role = Literal["target", "draft"]
_ROLES: tuple[_Role, ...] = ("target", "draft")


@dataclass(frozen=True, slots=True)
class MergedSettings:
    """The settings, with models as the user named them, and the layers they come from.

    given: the command line and the environment. config: config.yaml. layers: these and the profile's, the strongest
    first. profile: its name, if one is used.
    """

    settings: Settings
    given: dict[str, Any]
    config: dict[str, Any]
    layers: list[dict[str, Any]]
    profile: str | None

    def overrides(self, *roles: _Role) -> bool:
        """Whether a layer above the profile sets one of these models."""
        return any(layer.get(role) is not None for layer in (self.given, self.config) for role in roles)


def resolve(profile: str | None, given: dict[str, Any]) -> Settings:
    """The settings of a run, with models as file paths. Takes the arguments and raises the errors of `merged`, and
    DownloadError if a model hasn't been pulled.
    """
    found = merged(profile, given)
    settings = found.settings
    if found.profile is None or found.overrides("target", "draft"):
        draft = ["--draft", settings.draft] if settings.draft else []
        command = shlex.join(["specdec", "pull", "--target", settings.target, *draft])
    else:
        command = f"specdec pull {found.profile}"
    if found.profile and (pair := pulled_pairs.readable(found.profile)):  # its models are of the pulled commit
        target, draft_model = settings.target, settings.draft
        draft_model = draft_model and str(pair.path(draft_model) or draft_model)
        settings = replace(settings, target=str(pair.path(target) or target), draft=draft_model)
    return _with_heads(_located(settings, command), found.layers)


def merged(profile: str | None, given: dict[str, Any]) -> MergedSettings:
    """Merge the layers. given: the command line and the environment, with None for what they don't set.

    Without models and a profile, it uses the bundled demo pair. Raises UsageError on unknown keys and invalid values,
    SpecdecError on an unknown profile.
    """
    config_file = config_dir() / "config.yaml"
    config = read_mapping(config_file) if config_file.is_file() else {}
    config_profile = config.pop("profile", None)
    config = _checked(config, config_file)
    given = {name: value for name, value in given.items() if value is not None}
    named = profile or (None if given.get("target") else config_profile)
    if profile or (given.get("target") and config.get("target")):  # -p and -m override the pair of config.yaml
        config = {name: value for name, value in config.items() if name not in ("target", "draft")}
    layers = [given, config]
    target = given.get("target") or config.get("target")
    if named is None and target is None:
        if {given.get("draft"), config.get("draft")} - {None, "none"}:
            raise UsageError("a draft was given without a target", "Name the target with -m, or a pair with -p.")
        named = profiles.DEMO
    elif named is None and profiles.is_profile(str(target)):
        named = target
        for layer in layers:
            layer.pop("target", None)
    for layer in layers:
        if layer.get("draft") == "none":
            raise UsageError("a draft model can't be 'none'", "For the target alone: --drafter none, without -md.")
        for role in _ROLES:  # a profile's name for a model means the profile's
            if layer.get(role):
                layer[role] = profiles.model_name(layer[role], role)
    name = None if named is None else str(named)
    layers.append({} if name is None else _profile_layer(name))
    return MergedSettings(_merge(layers), given, config, layers, name)


def _with_heads(settings: Settings, layers: list[dict[str, Any]]) -> Settings:
    """Draft with the heads in the files, unless a layer names a drafter: the draft file's heads, or the target's own
    without a draft.
    """
    if any(layer.get("drafter") not in (None, AUTO) for layer in layers):
        return settings
    kind = ""
    with suppress(SpecdecError):  # loading the file reports it
        header = read_header(Path(settings.draft or settings.target))
        kind = head_of(header) if settings.draft is None else head_alone(header)
    if kind and kind != "medusa":  # Medusa needs no extension of llama.cpp
        from specdec_cli.llama import undeclared

        kind = "" if undeclared.missing_for_heads() else kind
    return replace(settings, drafter=drafters.auto(settings.draft is not None, kind)) if kind else settings


def _merge(layers: list[dict[str, Any]]) -> Settings:
    said = ({name: value for name, value in layer.items() if value is not None} for layer in layers)
    merged = dict(ChainMap(*said))
    if merged.get("seed") is not None or merged.get("bitwise"):  # with a fixed seed, the text must be reproducible
        merged.setdefault("accept", "coupled")
    settings = Settings(**{name: check_value(name, value) for name, value in merged.items()})
    return settings if _draft_fits(layers) else replace(settings, draft=None)


def _draft_fits(layers: list[dict[str, Any]]) -> bool:
    """Whether the draft fits the drafter: `self` needs a copy of the target, not the draft of a weaker layer."""
    for i, layer in enumerate(layers):
        drafter = check_value("drafter", layer.get("drafter"))
        if drafter and drafter != AUTO:
            itself = Settings(drafter=drafter).cascade.drafts_itself
            return not itself or any(above.get("draft") for above in layers[: i + 1])
    return True


def _located(settings: Settings, command: str) -> Settings:
    """Replace references to the Hub by paths. Skips draft models that the drafter doesn't need."""
    settings = replace(settings, target=str(locate(settings.target, command)))
    if settings.draft_small is not None and settings.cascade.needs_small:
        small = locate(settings.draft_small, shlex.join(["specdec", "pull", "--target", settings.draft_small]))
        settings = replace(settings, draft_small=str(small))
    if settings.draft is None or not settings.cascade.needs_model:
        return with_made_draft(settings)
    return replace(settings, draft=str(locate(settings.draft, command)))


def with_made_draft(settings: Settings) -> Settings:
    """For `self` without a draft, add the draft last made from the target, if there is one."""
    if settings.draft is not None or not settings.cascade.drafts_itself:
        return settings
    draft = made_drafts.find(Path(settings.target))
    return replace(settings, draft=str(draft) if draft else None)


def _profile_layer(name: str) -> dict[str, Any]:
    profile = profiles.load(name)
    models: dict[str, Any] = {role: model for role in _ROLES if (model := profile.model(role))}
    settings = {**settings_of(profile), **models}
    for role in {"lora", "lora_draft"} & settings.keys():
        settings[role] = settings[role] and [str(profile.folder / expanded(path)) for path in settings[role]]
    return settings


def settings_of(profile: Profile) -> dict[str, Any]:
    """A profile's settings, by option name. Raises UsageError on unknown options and invalid values."""
    return _checked(profile.settings, profile.file)


def _checked(values: dict[Any, Any], path: Path) -> dict[str, Any]:
    """A file's options, by name and converted to their types."""
    named = {name_of(key) if isinstance(key, str) else key: value for key, value in values.items()}
    check_keys(named, OPTIONS, path)
    try:
        return {name: check_value(name, value) for name, value in named.items()}
    except UsageError as error:
        raise UsageError(f"{path.name}: {error}", error.hint) from None


def require_used(typed: Collection[str], variants: Iterable[Settings]) -> None:
    """Raise UsageError if the user typed an option that none of the drafters uses.

    `none` allows all of them, so that adding it to a command gives the baseline.
    """
    cascades = [each.cascade for each in variants]
    if all(cascade.names == ("none",) for cascade in cascades):
        return
    for name, need, user, add in (
        ("ngram_corpus", "reads_texts", "the drafter ngram", "ngram, or ngram+model"),
        ("lookahead", "looks_ahead", "the drafter lookahead", "lookahead"),
        ("lora_draft", "needs_whole_model", "drafters with a draft model", "model, or ngram+model"),
        ("draft_small", "needs_small", "drafters with a second draft model", "'small>model'"),
        ("draft_window", "needs_whole_model", "drafters with a draft model", "model, or ngram+model"),
        ("tree", "needs_model", "drafters with a draft model", "model, or ngram+model"),
    ):
        if name in typed and not any(getattr(cascade, need) for cascade in cascades):
            raise UsageError(f"--{name.replace('_', '-')} is for {user}", f"Add --drafter {add}.")
