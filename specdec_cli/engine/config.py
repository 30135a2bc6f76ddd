"""The configuration of an engine and of its answers: typed values, checked when they are made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

from specdec_cli import drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.rules import RULES
from specdec_cli.decoding.sampling import SamplingSettings

AUTO: Literal["auto"] = "auto"
MOST_BRANCHES = 64
"""Of a token tree. llama.cpp has room for 256 sequences, but so wide a tree would verify little but first guesses."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one answer is sampled, and what ends it. None stands for what the engine was loaded with.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repeat_penalty 1 are off. seed: from 0; the same seed gives
    the same text, whatever drafts. max_tokens: of the answer. stop: strings that end it.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How tokens are drafted and accepted. None stands for what the profile or the default says.

    drafter: a name of `specdec drafters`, or several, as "ngram+model". draft_tokens: a step's, or "auto". accept:
    "rejection", "coupled" or "match", which are exact, or "typical", which is not. The other fields are the options
    of `specdec run` with the same names.
    """

    drafter: str | None = None
    draft_tokens: int | Literal["auto"] | None = None
    draft_min_p: float | None = None
    tree: int | None = None
    lookahead: str | None = None
    accept: str | None = None
    bitwise: bool | None = None
    ngram_corpus: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class LookaheadShape:
    """Lookahead's window (W), size of n-grams (N) and number of candidates (G)."""

    window: int
    size: int
    candidates: int

    @property
    def window_tokens(self) -> int:
        """Draft tokens that the window alone takes."""
        return self.window * (self.size - 1) - 1

    @property
    def tokens(self) -> int:
        """Draft tokens that a pass takes with all candidates."""
        return (self.window + self.candidates) * (self.size - 1) - 1

    @property
    def branches(self) -> int:
        """Branches of the tree that a pass verifies."""
        return self.window + self.candidates


@dataclass(frozen=True, slots=True)
class DrafterChain:
    """What the name of a drafter asks for: the drafters in the order in which they are asked, and what they need."""

    names: tuple[str, ...]
    needs_model: bool
    needs_small: bool
    drafts_itself: bool

    @property
    def looks_ahead(self) -> bool:
        return "lookahead" in self.names

    @property
    def reads_corpus(self) -> bool:
        return "ngram" in self.names


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a run depends on, whatever layer it came from. Names are those of the options and of config.yaml."""

    target: str = ""
    draft: str | None = None
    draft_small: str | None = None
    drafter: str = "model"
    accept: str = "rejection"
    bitwise: bool = False
    draft_tokens: int | Literal["auto"] = AUTO
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
            ("threads", _is_count(self.threads), "Give -t 1 or more, or leave it out."),
            ("threads_draft", _is_count(self.threads_draft), "Give -td 1 or more, or leave it out."),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "Give a whole number from 0."),
            ("accept", self.accept in RULES, f"Acceptance rules: {', '.join(RULES)}."),
        ):
            if not valid:
                raise UsageError(f"{name.replace('_', ' ')} cannot be {getattr(self, name)}", fix)
        _chain(self.drafter)

    @property
    def chain(self) -> DrafterChain:
        return _chain(self.drafter)

    @property
    def lookahead_shape(self) -> LookaheadShape:
        """What `lookahead` asks for; raises UsageError if it is not of the form W:N:G."""
        return _lookahead_shape(self.lookahead)

    @property
    def sampling(self) -> SamplingSettings:
        """What makes distributions of logits; raises UsageError on values without sense."""
        penalties = self.repeat_penalty, self.frequency_penalty, self.presence_penalty, self.repeat_last_n
        return SamplingSettings(self.temp, self.top_k, self.top_p, self.min_p, *penalties)

    @property
    def adapts(self) -> bool:
        return self.draft_tokens == AUTO and self.drafter != "none"

    def alone(self) -> Settings:
        """The same, with the target alone: the baseline of these settings."""
        return replace(self, drafter="none")

    @staticmethod
    def named(sampling: SamplingParams | None, speculative: SpeculativeConfig | None) -> dict[str, Any]:
        """What is given there, by the names of settings."""
        values = {**(asdict(speculative) if speculative else {}), **(asdict(sampling) if sampling else {})}
        values.pop("stop", None)
        return {("temp" if name == "temperature" else name): each for name, each in values.items() if each is not None}

    def shaping(self) -> dict[str, Any]:
        """What shapes an answer or how it comes about, beside its models: what a record of a run repeats."""
        return {name: getattr(self, name) for name in _SHAPING}


_SHAPING = (
    *("drafter", "accept", "bitwise", "draft_tokens", "draft_min_p", "tree", "lookahead", "ngram_corpus"),
    *("temp", "top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n"),
    *("seed", "max_tokens", "ctx"),
)


def _is_count(number: int | None) -> bool:
    return number is None or number >= 1


def _chain(name: str) -> DrafterChain:
    needs = drafters.needs_model(name), drafters.needs_small(name), drafters.drafts_itself(name)
    return DrafterChain(tuple(drafters.split(name)), *needs)


@cache
def _lookahead_shape(text: str) -> LookaheadShape:
    try:
        window, size, candidates = (int(part) for part in text.split(":"))
    except ValueError:
        window = size = candidates = 0
    if window < 1 or size < 2 or candidates < 1:
        raise UsageError(f"lookahead cannot be {text!r}", "Give W:N:G as in 4:3:4, with W and G from 1 and N from 2.")
    return LookaheadShape(window, size, candidates)
