"""The configuration of an engine and of its answers: typed values. What makes no sense is refused when it is made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from specdec_cli import drafters
from specdec_cli.constraints.grammar import Grammar
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.rules import REPRODUCIBLE, RULES
from specdec_cli.decoding.sampling import SamplingSettings
from specdec_cli.llama.placement import Placement

AUTO: Literal["auto"] = "auto"
MOST_BRANCHES = 64
"""Of a token tree. llama.cpp has room for 256 sequences, but so wide a tree would verify little but first guesses."""
LEAST_WINDOW = 64
"""Of a draft model's memory, in tokens: less has no room for a draft."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one answer is sampled, and what ends it. None stands for what the engine was loaded with.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repeat_penalty 1 are off. seed: from 0; the same seed gives
    the same text, whatever drafts. max_tokens: of the answer. stop: strings that end it. grammar: what the answer must
    be.
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
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How tokens are drafted and accepted. None stands for what the profile or the default says.

    drafter: a name of `specdec drafters`, several, as "ngram+model", or "auto". draft_tokens: a step's, or "auto".
    accept: "rejection", "coupled" or "match", which are exact, or "typical", which is not. The other fields are the
    options of `specdec run` with the same names.
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

    @classmethod
    def parse(cls, text: str) -> LookaheadShape:
        """Raises UsageError on what is not of the form W:N:G."""
        try:
            window, size, candidates = (int(part) for part in text.split(":"))
        except ValueError:
            window = size = candidates = 0
        if window < 1 or size < 2 or candidates < 1:
            fix = "Give W:N:G as in 4:3:4, with W and G from 1 and N from 2."
            raise UsageError(f"lookahead cannot be {text!r}", fix)
        return cls(window, size, candidates)

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
    head: str

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
    lora: tuple[str, ...] = ()
    lora_draft: tuple[str, ...] = ()
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
    draft_window: int | None = None
    ctx: int | None = None
    threads: int | None = None
    threads_draft: int | None = None
    gpu_layers: int = -1
    gpu_layers_draft: int = -1
    device: str | None = None
    device_draft: str | None = None
    tensor_split: str | None = None
    rpc: str | None = None
    rpc_insecure: bool = False

    def __post_init__(self) -> None:
        if self.drafter == AUTO:
            object.__setattr__(self, "drafter", drafters.auto(has_model=self.draft is not None))
        for name, valid, fix in (
            ("max_tokens", self.max_tokens >= 1, "Give -n 1 or more."),
            ("tree", 1 <= self.tree <= MOST_BRANCHES, f"Give --tree 1 (a chain) to {MOST_BRANCHES}."),
            ("ctx", self.ctx is None or 1 <= self.ctx < 2**31, "Give -c 1 or more, or leave it out."),
            ("draft_window", _is_window(self.draft_window), f"Give {LEAST_WINDOW} or more, or leave it out."),
            ("threads", _is_count(self.threads), "Give -t 1 or more, or leave it out."),
            ("threads_draft", _is_count(self.threads_draft), "Give -td 1 or more, or leave it out."),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "Give a whole number from 0."),
            ("accept", self.accept in RULES, f"Acceptance rules: {', '.join(RULES)}."),
        ):
            if not valid:
                raise UsageError(f"{name.replace('_', ' ')} cannot be {getattr(self, name)}", fix)
        _ = self.sampling, self.placements
        _check_length(self)
        _check_lookahead(self)
        _check_bitwise(self)

    @property
    def chain(self) -> DrafterChain:
        """Raises UsageError on drafters that there are not."""
        return _chain(self.drafter)

    @property
    def lookahead_shape(self) -> LookaheadShape:
        return LookaheadShape.parse(self.lookahead)

    @property
    def placements(self) -> tuple[Placement, Placement]:
        """Where the target and the draft models are to lie."""
        target = Placement.parse(self.gpu_layers, self.device, self.tensor_split, self.rpc, self.rpc_insecure)
        return target, Placement.parse(self.gpu_layers_draft, self.device_draft)

    @property
    def sampling(self) -> SamplingSettings:
        """What makes distributions of logits."""
        penalties = self.repeat_penalty, self.frequency_penalty, self.presence_penalty, self.repeat_last_n
        return SamplingSettings(self.temp, self.top_k, self.top_p, self.min_p, *penalties)

    @property
    def adapts(self) -> bool:
        return self.draft_tokens == AUTO and self.drafter != "none"

    @property
    def reproduces(self) -> bool:
        """Whether an answer must have the very tokens of the target alone with the same seed."""
        return self.temp == 0 or self.drafter == "none" or self.accept in REPRODUCIBLE

    @property
    def drafted_branches(self) -> int:
        """How many branches the draft model may be asked for."""
        return self.tree if self.chain.needs_model else 1

    @property
    def branches(self) -> int:
        """How many branches a draft may have."""
        return max(self.drafted_branches, self.lookahead_shape.branches if self.chain.looks_ahead else 1)

    def alone(self) -> Settings:
        """The same, with the target alone: the baseline of these settings."""
        return replace(self, drafter="none")

    @staticmethod
    def named(sampling: SamplingParams | None, speculative: SpeculativeConfig | None) -> dict[str, Any]:
        """What is given there, by the names of settings."""
        values = {**(asdict(speculative) if speculative else {}), **(asdict(sampling) if sampling else {})}
        values = {name: value for name, value in values.items() if name not in ("stop", "grammar")}
        return {("temp" if name == "temperature" else name): each for name, each in values.items() if each is not None}

    def shaping(self) -> dict[str, Any]:
        """What shapes an answer or how it comes about, beside its models: what a record of a run repeats."""
        return {name: getattr(self, name) for name in _SHAPING}


_SHAPING = (
    *("drafter", "accept", "bitwise", "draft_tokens", "draft_min_p", "tree", "lookahead", "ngram_corpus"),
    *("lora", "lora_draft"),
    *("temp", "top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n"),
    *("seed", "max_tokens", "ctx"),
)


@lru_cache
def _chain(drafter: str) -> DrafterChain:
    needs = drafters.needs_model(drafter), drafters.needs_small(drafter), drafters.drafts_itself(drafter)
    return DrafterChain(tuple(drafters.split(drafter)), *needs, drafters.head(drafter))


def _is_window(tokens: int | None) -> bool:
    return tokens is None or LEAST_WINDOW <= tokens < 2**31


def _is_count(number: int | None) -> bool:
    return number is None or number >= 1


def _check_length(settings: Settings) -> None:
    from specdec_cli.llama.passes import N_BATCH

    tokens = settings.draft_tokens
    if tokens != AUTO and not 1 <= tokens < N_BATCH:
        fewest = "Give -k 1 or more, or auto; to run the target alone, use --drafter none."
        most = f"Give -k up to {N_BATCH - 1}: one pass of llama.cpp takes {N_BATCH} tokens."
        raise UsageError(f"the number of draft tokens cannot be {tokens}", fewest if tokens < 1 else most)
    if not 0 <= settings.draft_min_p < 1:
        raise UsageError(f"draft-min-p cannot be {settings.draft_min_p}", "Give a number in [0, 1); 0 is off.")


def _check_lookahead(settings: Settings) -> None:
    from specdec_cli.llama.passes import MOST_SEQUENCES, N_BATCH

    shape = settings.lookahead_shape
    if shape.tokens + 1 > N_BATCH or shape.branches > MOST_SEQUENCES:
        raise UsageError(
            f"lookahead {settings.lookahead} is too much for one pass of llama.cpp",
            f"Make (W + G) * (N - 1) at most {N_BATCH}, and W + G at most {MOST_SEQUENCES}.",
        )
    tokens = settings.draft_tokens
    if tokens != AUTO and tokens < shape.window_tokens and settings.chain.looks_ahead:
        raise UsageError(
            f"the window {settings.lookahead} does not fit into {tokens} draft tokens",
            f"Give -k {shape.window_tokens} or more, or auto.",
        )


def _check_bitwise(settings: Settings) -> None:
    """`--bitwise` promises the target's own text: refuse what it cannot promise that for."""
    if not settings.bitwise or settings.drafter == "none":
        return
    if not settings.reproduces:
        raise UsageError(
            f"--bitwise promises the target's own text, and at a temperature --accept {settings.accept} gives another",
            "Leave --accept out, or give --accept coupled or match.",
        )
    if settings.tree > 1 or settings.chain.looks_ahead:
        what = "lookahead" if settings.chain.looks_ahead else f"--tree {settings.tree}"
        raise UsageError(
            f"--bitwise cannot be used with {what}: a tree is read in another order than text, and rounds differently",
            "Chains work: the drafters model and ngram without --tree.",
        )


_PATHS = {"ngram_corpus": "files or folders of text", "lora": "GGUF adapters", "lora_draft": "GGUF adapters"}
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def check_value(name: str, value: Any, text: bool = False) -> Any:
    """A setting's value, of the right type. text: it may be written as text, as on the command line.

    Raises UsageError: a settings file may hold anything.
    """
    if value is None:
        return None
    if name in _PATHS:
        return _paths(name, value)
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{name} holds a zero character", "Leave it out.")
    with suppress(msgspec.ValidationError, UnicodeEncodeError):  # the latter: bytes that are no text
        return msgspec.convert(value, _types()[name], strict=not (text or name == "draft_tokens"))
    if name == "draft_tokens":
        raise UsageError(f"the number of draft tokens cannot be {value!r:.60}", "Give -k a whole number, or auto.")
    kind = str(Settings.__dataclass_fields__[name].type).partition(" ")[0]
    fix = "Fix it in config.yaml or in the profile."
    if kind == "str" and isinstance(value, (int, float)):
        fix = "YAML reads a number there: put it in quotes, in config.yaml or in the profile."
    raise UsageError(f"{name} is {value!r:.60}, not {_KINDS[kind]}", fix)


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Settings)


def _paths(name: str, value: Any) -> tuple[str, ...]:
    """One path or several."""
    paths = (value,) if isinstance(value, (str, Path)) else value
    given = paths if isinstance(paths, (list, tuple)) else [None]
    names = [str(path) if isinstance(path, (str, Path)) else "" for path in given]
    if any(not path or "\0" in path for path in names):
        raise UsageError(f"{name} is {value!r:.60}, not a path or a list of paths", f"Name {_PATHS[name]}.")
    return tuple(names)
