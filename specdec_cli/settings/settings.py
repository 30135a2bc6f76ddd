"""The settings of an engine and its answers: options with their defaults, and values derived from them."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from specdec_cli import drafters
from specdec_cli.constraints.grammar import Grammar
from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.options import SamplingOptions, fill, options_of
from specdec_cli.decoding.rules import REPRODUCIBLE, RULES, keeps_greedy
from specdec_cli.decoding.types import LengthPolicy
from specdec_cli.drafters.drafter_context import LookaheadShape
from specdec_cli.llama.placement import Placement
from specdec_cli.settings.options import AUTO, OPTIONS, TYPE_NAMES, ModelOptions, SamplingParams, SpeculativeConfig

if TYPE_CHECKING:
    from specdec_cli.constraints.grammar_state import TokenVocabulary

_RECORDED = (
    *options_of(SpeculativeConfig),
    *("lora", "lora_draft"),
    *options_of(SamplingOptions),
    *("seed", "max_tokens", "chat_template_kwargs", "ctx"),
)


@dataclass(frozen=True, slots=True)
class DrafterCascade:
    """A parsed drafter name: the drafters in the order in which they are asked, and what they need. drafts_itself: the
    draft model is a copy of the target. head: the kind of heads that draft; empty if none do.
    """

    names: tuple[str, ...]
    needs_model: bool
    needs_small: bool
    drafts_itself: bool
    head: str

    def auto(self, has_model: bool) -> str:
        """What `--drafter auto` means where the models of these drafters are loaded."""
        return drafters.auto(has_model, "self" if self.drafts_itself else self.head)

    @property
    def needs_whole_model(self) -> bool:
        """Whether it needs a draft model that isn't heads."""
        return self.needs_model and not self.head

    @property
    def looks_ahead(self) -> bool:
        return "lookahead" in self.names

    @property
    def reads_texts(self) -> bool:
        """Whether it drafts from other texts: a corpus, a prediction."""
        return "ngram" in self.names


def require_stops(stop: Collection[str]) -> None:
    """Raise UsageError for an empty stop string, which every answer contains."""
    if "" in stop:
        raise UsageError("a stop string cannot be empty", "Leave it out, or name the text to stop at.")


@dataclass(frozen=True)
class Options(SamplingParams, SpeculativeConfig, ModelOptions):
    """All options; None if not set."""

    if TYPE_CHECKING:  # drafters and rules have names here, also the user's own
        drafter: str = AUTO
        accept: str = ""
        chat_template_kwargs: str | None = None


@dataclass(frozen=True)
class Settings(Options):
    """All settings of a run, from all layers. The constructor raises UsageError on invalid ones."""

    def __post_init__(self) -> None:
        fill(self)
        if self.drafter == AUTO:
            object.__setattr__(self, "drafter", drafters.auto(has_model=self.draft is not None))
        if self.accept not in RULES:
            raise UsageError(f"accept cannot be {self.accept}", f"Acceptance rules: {', '.join(RULES)}.")
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        require_stops(self.stop)
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs cannot be {self.logprobs}", "Give the number of likely tokens, 0 or more.")
        _ = self.placements
        _check_length(self)
        _check_lookahead(self)
        if self.tree > 1 and any("<" in name for name in self.cascade.names):
            fix = "Leave out --tree, or draft with the drafter model."
            raise UsageError(f"--tree cannot be used with {self.drafter}: it drafts chains", fix)
        _check_bitwise(self)

    @property
    def cascade(self) -> DrafterCascade:
        """Raises UsageError on unknown drafters."""
        return _cascade(self.drafter)

    @property
    def lookahead_shape(self) -> LookaheadShape:
        return LookaheadShape.parse(self.lookahead)

    @property
    def placements(self) -> tuple[Placement, Placement]:
        """The devices of the target and of the draft models."""
        target = Placement.parse(self.gpu_layers, self.device, self.tensor_split, self.rpc, self.rpc_insecure)
        return target, Placement.parse(self.gpu_layers_draft, self.device_draft)

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template, besides the conversation."""
        return dict(json.loads(self.chat_template_kwargs or "{}"))

    @property
    def adapts(self) -> bool:
        return self.draft_tokens == AUTO and self.drafter != "none" and self.length_policy is None

    @property
    def reproduces(self) -> bool:
        """Whether an answer has exactly the tokens of the target alone with the same seed."""
        greedy = self.temperature == 0 and keeps_greedy(self.accept)
        return greedy or self.drafter == "none" or self.accept in REPRODUCIBLE

    @property
    def drafted_branches(self) -> int:
        """The most branches that the draft model drafts."""
        return self.tree if self.cascade.needs_model else 1

    @property
    def branches(self) -> int:
        """The most branches of a draft."""
        return max(self.drafted_branches, self.lookahead_shape.branches if self.cascade.looks_ahead else 1)

    def alone(self) -> Settings:
        """These settings with the target alone: their baseline. It never draws by a rule that the program passes."""
        accept = self.accept if keeps_greedy(self.accept) else "rejection"
        return replace(self, drafter="none", length_policy=None, accept=accept)

    def constraint(self, vocabulary: TokenVocabulary, written: int = 0) -> Constraint | None:
        """The grammar's state at the start of an answer. written: how many of the prompt's last tokens belong to it."""
        if self.grammar is None:
            return None
        from specdec_cli.constraints.grammar_state import GrammarState

        return GrammarState(vocabulary, self.grammar, written)

    def recorded(self) -> dict[str, Any]:
        """The settings that a run's record repeats: all that affect an answer, except the models."""
        return {name: getattr(self, name) for name in _RECORDED}


@lru_cache
def _cascade(drafter: str) -> DrafterCascade:
    names = drafters.split(drafter)
    outer, _, inner = zip(*(name.partition("<") for name in names), strict=True)
    return DrafterCascade(
        tuple(names),
        needs_model=any(drafters.spec(name).needs_model for name in outer),
        needs_small=any(name and drafters.spec(name).needs_model for name in inner),
        drafts_itself="self" in outer,
        head=next((name for name in names if name in drafters.HEADS), ""),
    )


def _check_length(settings: Settings) -> None:
    from specdec_cli.llama.passes import N_BATCH

    tokens = settings.draft_tokens
    if tokens != AUTO and not 1 <= tokens < N_BATCH:
        fewest = "Give -k 1 or more, or auto; to run the target alone, use --drafter none."
        most = f"Give -k up to {N_BATCH - 1}: one pass of llama.cpp takes {N_BATCH} tokens."
        raise UsageError(f"the number of draft tokens cannot be {tokens}", fewest if tokens < 1 else most)


def _check_lookahead(settings: Settings) -> None:
    from specdec_cli.llama.passes import MAX_SEQUENCES, N_BATCH

    shape = settings.lookahead_shape
    if shape.tokens + 1 > N_BATCH or shape.branches > MAX_SEQUENCES:
        raise UsageError(
            f"lookahead {settings.lookahead} does not fit into one pass of llama.cpp",
            f"Make (W + G) * (N - 1) at most {N_BATCH}, and W + G at most {MAX_SEQUENCES}.",
        )
    tokens = settings.draft_tokens
    if tokens != AUTO and tokens < shape.window_tokens and settings.cascade.looks_ahead:
        raise UsageError(
            f"the window {settings.lookahead} does not fit into {tokens} draft tokens",
            f"Give -k {shape.window_tokens} or more, or auto.",
        )


def _check_bitwise(settings: Settings) -> None:
    """Raise UsageError on settings for which --bitwise can't guarantee the target's own text."""
    if not settings.bitwise or settings.drafter == "none":
        return
    if not settings.reproduces:
        raise UsageError(
            f"--bitwise promises the target's own text, but --accept {settings.accept} gives another when sampling",
            "Leave --accept out, or give --accept coupled or match.",
        )
    if settings.tree > 1 or settings.cascade.looks_ahead:
        what = "lookahead" if settings.cascade.looks_ahead else f"--tree {settings.tree}"
        raise UsageError(
            f"--bitwise cannot be used with {what}: trees are read in another order than text and round differently",
            "Draft chains: use the drafter model or ngram, without --tree.",
        )


_PATHS = {"ngram_corpus": "files or folders of text", "lora": "GGUF adapters", "lora_draft": "GGUF adapters"}
_EXPECTED = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
_EXPECTED |= {
    "chat_template_kwargs": "a JSON object",
    "Grammar": "a Grammar, as Grammar.rules(text) makes it",
    "LengthPolicy": "a LengthPolicy",
}


def check_value(name: str, value: Any, text: bool = False) -> Any:
    """An option's value, converted to its type. text: whether text is converted, as on the command line.

    Raises UsageError if the value has the wrong type or is out of bounds.
    """
    if value is None:
        return None
    if name in _PATHS:
        return _paths(name, value)
    if name == "chat_template_kwargs" and isinstance(value, dict):
        with suppress(TypeError, ValueError, RecursionError):
            value = json.dumps(value)
    if text and TYPE_NAMES.get(name) == "bool":
        value = {"on": True, "off": False}.get(value, value)
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{name} contains a null character", "Remove it.")
    with suppress(msgspec.ValidationError, UnicodeEncodeError):  # the latter: bytes that aren't text
        value = msgspec.convert(value, option_types()[name], strict=not (text or name == "draft_tokens"))
        if name in OPTIONS and value is not None:  # msgspec reads "null" as None
            OPTIONS[name].check(name, value)
        return value
    if name == "draft_tokens":
        raise UsageError(f"the number of draft tokens cannot be {value!r:.60}", "Give a whole number, or auto.")
    kind = name if name in _EXPECTED else TYPE_NAMES[name]
    quoted = kind == "str" and isinstance(value, (int, float))
    fix = "Put it in quotes." if quoted else f"Give {_EXPECTED[kind]}."
    raise UsageError(f"{name} is {value!r:.60}, not {_EXPECTED[kind]}", fix)


@cache
def option_types() -> dict[str, Any]:
    """The type of each option, by name; names stand for drafters, rules and models, as in `Options`."""
    named = {"Proposer": str, "AcceptRule": str, "type": str}
    return get_type_hints(Options, localns={"Grammar": Grammar, "LengthPolicy": LengthPolicy, **named})


def _paths(name: str, value: Any) -> tuple[str, ...]:
    paths = (value,) if isinstance(value, (str, Path)) else value
    given = paths if isinstance(paths, (list, tuple)) else [None]
    names = [str(path) if isinstance(path, (str, Path)) else "" for path in given]
    if any(not path or "\0" in path for path in names):
        raise UsageError(f"{name} is {value!r:.60}, not a path or a list of paths", f"Name {_PATHS[name]}.")
    return tuple(names)
