"""Settings from their layers: flag or SPECDEC_* variable, the user's config.yaml, the profile, the default."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from specdec_cli import drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.rules import RULES
from specdec_cli.hub.locate import locate
from specdec_cli.models import profiles, user_files
from specdec_cli.models.profiles import Profile
from specdec_cli.store import made_drafts as drafts
from specdec_cli.store import pulled_pairs as pairs

AUTO = "auto"
MOST_BRANCHES = 64
"""Of a token tree. llama.cpp has room for 256 sequences; a tree that wide would verify little but first guesses."""


SHAPING = (
    *("drafter", "accept", "bitwise", "draft_tokens", "draft_min_p", "tree", "lookahead", "ngram_corpus"),
    *("temp", "top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n"),
    *("seed", "max_tokens", "ctx"),
)
"""Settings that shape an answer or how it comes about, beside its models: what a record of a run repeats."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run needs to know, whatever layer it came from. Names are those of the options and of config.yaml."""

    target: str = ""
    draft: str | None = None
    draft_small: str | None = None
    drafter: str = "model"
    accept: str = "rejection"
    bitwise: bool = False
    draft_tokens: int | str = AUTO
    draft_min_p: float = 0.0
    tree: int = 1
    lookahead: str = "4:3:4"
    ngram_corpus: tuple[str, ...] = ()
    max_tokens: int = 256
    temp: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int | None = None
    ctx: int | None = None
    threads: int | None = None
    threads_draft: int | None = None
    gpu_layers: int = -1
    gpu_layers_draft: int = -1

    def __post_init__(self) -> None:
        for name, valid, fix in (
            ("max_tokens", self.max_tokens >= 1, "Give -n 1 or more."),
            ("tree", 1 <= self.tree <= MOST_BRANCHES, f"Give --tree 1 (a chain) to {MOST_BRANCHES}."),
            ("ctx", self.ctx is None or 1 <= self.ctx < 2**31, "Give -c 1 or more, or leave it out."),
            ("threads", self.threads is None or self.threads >= 1, "Give -t 1 or more, or leave it out."),
            (
                "threads_draft",
                self.threads_draft is None or self.threads_draft >= 1,
                "Give -td 1 or more, or leave it out.",
            ),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "Give a whole number from 0."),
            ("accept", self.accept in RULES, f"Acceptance rules: {', '.join(RULES)}."),
        ):
            if not valid:
                raise UsageError(f"{name.replace('_', ' ')} cannot be {getattr(self, name)}", fix)
        drafters.split(self.drafter)

    def alone(self) -> Settings:
        """The same, with the target alone: the baseline of these settings."""
        return replace(self, drafter="none")


_NAMES = tuple(field.name for field in fields(Settings))
_NUMBERS = {
    field.name: float if "float" in str(field.type) else int
    for field in fields(Settings)
    if "str" not in str(field.type)
}


def resolve(profile: str | None, flags: dict[str, Any]) -> Settings:
    """Merge the layers. flags: what the command line and the environment give, None where they do not.

    With neither models nor a profile named, the bundled demo pair is used. Models of the Hub become their files in
    its cache. Raises UsageError on unknown or senseless values, SpecdecError on an unknown profile, DownloadError on
    a model that has not been pulled.
    """
    config_file = user_files.config_dir() / "config.yaml"
    config = user_files.read_mapping(config_file) if config_file.is_file() else {}
    user_files.check_keys(config, (*_NAMES, "profile"), config_file)
    given = {name: value for name, value in flags.items() if value is not None}
    config_profile = config.pop("profile", None)
    config = {name: _checked(name, value) for name, value in config.items()}
    if profile:  # it sets both models, and counts for more than config.yaml
        config.pop("target", None)
        config.pop("draft", None)
    named = profile or config_profile
    layers = [given, config]
    target = given.get("target") or config.get("target")
    if named is None and target is None:
        if "draft" in given or "draft" in config:
            raise UsageError("a draft was given without a target", "Name the target with -m, or a pair with -p.")
        named = profiles.DEMO
    elif named is None and not str(target).endswith(".gguf") and target in profiles.names():
        named = target
        for layer in layers:
            layer.pop("target", None)
    for layer in layers:  # the contract lets a profile stand for a model; its draft stands for it here
        if layer.get("draft") in profiles.names():
            layer["draft"] = _of_profile(layer["draft"], config_file).get("draft")
    if named is not None:
        layers.append(_of_profile(str(named), config_file))
    merged = _merged(layers)
    if named is not None and merged.get("draft") is None:  # a profile without a draft means the target alone
        merged.setdefault("drafter", "none")
    merged["draft"] = merged.get("draft") if _draft_stands(layers) else None
    settings = Settings(**{name: _checked(name, value) for name, value in merged.items()})
    if named is not None and not any("target" in layer or "draft" in layer for layer in layers[:-1]):
        pair = pairs.readable(str(named))
        if pair and (settings.target, settings.draft) == pair.references and pair.is_here():  # at the commit pulled
            target, draft = pair.paths()
            return self_drafted(replace(settings, target=str(target), draft=str(draft) if draft else None))
        return _located(settings, f"specdec pull {named}")
    return _located(settings, _pull_command(settings))


def _merged(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """What the layers say together, the first counting most."""
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged.update(layer)
    if merged.get("seed") is not None or merged.get("bitwise"):  # who fixes the seed wants one text
        merged.setdefault("accept", "coupled")
    return merged


def _draft_stands(layers: list[dict[str, Any]]) -> bool:
    """Whether the draft named is for the drafter named: a pair's draft is not the copy that `self` drafts with."""
    for i, layer in enumerate(layers):
        if drafter := _checked("drafter", layer.get("drafter")):
            return not drafters.drafts_itself(drafter) or any(above.get("draft") for above in layers[: i + 1])
    return True


def _located(settings: Settings, command: str) -> Settings:
    """The same with models of the Hub as paths; a draft that is not needed is not looked for."""
    settings = replace(settings, target=str(locate(settings.target, command)))
    if settings.draft is None or not drafters.needs_model(settings.drafter):
        return self_drafted(settings)
    return replace(settings, draft=str(locate(settings.draft, command)))


def self_drafted(settings: Settings) -> Settings:
    """The same, for `self` without a draft with the one last made of the target, if there is one."""
    if settings.draft is not None or not drafters.drafts_itself(settings.drafter):
        return settings
    draft = drafts.find(Path(settings.target))
    return replace(settings, draft=str(draft) if draft else None)


def _pull_command(settings: Settings) -> str:
    """What downloads those models that are the Hub's."""
    models = {"--target": settings.target, "--draft": settings.draft}
    flags = [word for flag, name in models.items() if name for word in (flag, name)]
    return shlex.join(["specdec", "pull", *flags])


def _of_profile(name: str, config_file: Path) -> dict[str, Any]:
    """A profile as a layer: its settings and its models."""
    profile = profiles.load(name)
    require_known(profile)
    models = {"target": profile.model("target"), "draft": profile.model("draft")}
    return {**profile.settings, **{role: model for role, model in models.items() if model}}


def require_known(profile: Profile) -> None:
    """Raise UsageError on settings of a profile that there are not, or that have no such value."""
    user_files.check_keys(profile.settings, _NAMES, profile.folder / f"{profile.name}.yaml")
    for name, value in profile.settings.items():
        _checked(name, value)


def _draft_tokens(value: Any) -> int | str:
    """A number or "auto"; the command line gives text for both."""
    try:
        if value == AUTO or (isinstance(value, int) and not isinstance(value, bool)):
            return value  # type: ignore[no-any-return]
        if isinstance(value, str):
            return int(value)
    except ValueError:
        pass
    raise UsageError(f"the number of draft tokens cannot be {value!r}", "Give -k a whole number, or auto.")


def _paths(value: Any) -> tuple[str, ...]:
    """One path or several."""
    found = (value,) if isinstance(value, (str, Path)) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(path, (str, Path)) and str(path) for path in found):
        raise UsageError(f"ngram_corpus is {value!r}, not a path or a list of paths", "Name files or folders of text.")
    return tuple(str(path) for path in found)


def _checked(name: str, value: Any) -> Any:
    """A value of the right kind: a settings file may hold anything."""
    if value is None:
        return None
    if name == "draft_tokens":
        return _draft_tokens(value)
    if name == "ngram_corpus":
        return _paths(value)
    if name == "bitwise":
        if not isinstance(value, bool):
            raise UsageError(f"bitwise is {value!r}, not true or false", "Fix it in config.yaml or in the profile.")
        return value
    kind = _NUMBERS.get(name)
    right = isinstance(value, str) if kind is None else isinstance(value, (int, kind)) and not isinstance(value, bool)
    if not right:
        wanted = "text" if kind is None else "a number" if kind is float else "a whole number"
        mend = "Mend it in config.yaml or in the profile."
        if kind is None and isinstance(value, (int, float)):  # 4:3:4 is a number in base 60
            mend = "YAML reads a number there: put it in quotes, in config.yaml or in the profile."
        raise UsageError(f"{name} is {value!r}, not {wanted}", mend)
    return value
