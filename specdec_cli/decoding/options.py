"""Options that users can set. Each is one field with its type, default, allowed values and a line of help.

The command line, config.yaml, profiles, SPECDEC_* variables, the server, variants and records are derived from these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from specdec_cli.decoding.errors import UsageError

_KEY = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """An option's properties besides its type.

    help: one line; further lines appear only in `--help-all`. common: whether `--help` lists it. panel: its heading in
    both. flag, short: its names on the command line; an empty flag means the field's name. shown: the default in
    words. takes: the allowed values in words; valid: checks a value.
    """

    default: Any
    help: str
    common: bool = False
    panel: str | None = None
    flag: str = ""
    short: str = ""
    shown: str = ""
    metavar: str | None = None
    takes: str = ""
    valid: Callable[[Any], bool] | None = None

    @property
    def default_text(self) -> str:
        """The default for `--help`; empty if there is none to show."""
        if self.shown or self.default in (None, False, "", ()):
            return self.shown or ("0" if self.default == 0 and self.default is not False else "")
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError if a value of the right type isn't allowed."""
        if self.valid and not self.valid(value):
            raise UsageError(f"{name.replace('_', '-')} cannot be {value}", f"Give {self.takes}.")


def option(default: Any, help_: str, **more: Any) -> Any:
    """A field that is an option; `more` are the fields of `Option`.

    A struct holds None for options that weren't given until `fill` sets the defaults; the field's type is that of the
    final value.
    """
    return field(default=None, metadata={_KEY: Option(default, help_, **more)})


def options_of(struct: type) -> dict[str, Option]:
    """The options of a struct by name."""
    return {each.name: each.metadata[_KEY] for each in fields(struct) if _KEY in each.metadata}


def fill(struct: Any) -> None:
    """Set the defaults of options that weren't given. Raises UsageError for a value that isn't allowed."""
    for name, about in options_of(type(struct)).items():
        value = getattr(struct, name)
        if value is None:
            object.__setattr__(struct, name, about.default)
        else:
            about.check(name, value)


_sampling = partial(option, panel="Sampling")
_count = partial(_sampling, valid=lambda value: 0 <= value < 2**31)
_signed = partial(_sampling, 0.0, takes="a number from -1000 to 1000", valid=lambda value: abs(value) <= 1000)


@dataclass(frozen=True)
class SamplingOptions:
    """How logits become a distribution."""

    temperature: float = _sampling(
        0.0,
        "Temperature; 0 is greedy.",
        common=True,
        flag="temp",
        takes="0 (greedy), or a number from 0.001 to 1000",
        valid=lambda value: value == 0 or 0.001 <= value <= 1000,
    )
    top_k: int = _count(40, "Keep the k most likely tokens; 0 is off.", takes="0 (off) or more")
    top_p: float = _sampling(
        0.95,
        "Keep the most likely tokens whose probabilities add up to this; 1 is off.",
        takes="a number in (0, 1]; 1 is off",
        valid=lambda value: 0 < value <= 1,
    )
    min_p: float = _sampling(
        0.05,
        "Drop tokens below this share of the most likely one; 0 is off.",
        takes="a number in [0, 1]; 0 is off",
        valid=lambda value: 0 <= value <= 1,
    )
    repeat_penalty: float = _sampling(
        1.0,
        "Penalty for recent tokens; 1 is off.",
        takes="a number from 0.001 to 1000; 1 is off",
        valid=lambda value: 0.001 <= value <= 1000,
    )
    frequency_penalty: float = _signed("Penalty for each recent occurrence; 0 is off.")
    presence_penalty: float = _signed("Penalty for having occurred recently; 0 is off.")
    repeat_last_n: int = _count(64, "How many tokens back the penalties look.", takes="0 or more tokens")

    def __post_init__(self) -> None:
        fill(self)

    @property
    def sampling_key(self) -> tuple[float, ...]:
        """Only these options, whatever else the struct holds."""
        return tuple(getattr(self, name) for name in options_of(SamplingOptions))

    @property
    def penalises(self) -> bool:
        """Whether penalties make a token's probability depend on the tokens before it."""
        off = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) == (1, 0, 0)
        return self.repeat_last_n > 0 and not off
