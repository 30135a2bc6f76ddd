"""Do two models share a tokenizer? Answered from the GGUF headers alone.

A draft is only useful if its token ids mean what the target's mean. The rule is stricter than llama.cpp's,
which compares the vocabulary type, BOS/EOS, the size within 128, and the texts from id 5 on: here merges,
the pre-tokenizer, token types and ids 0 to 4 count too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from specdec_cli.decoding.errors import IncompatiblePair
from specdec_cli.models.gguf import Header, StringArray

_NORMAL, _UNUSED = 1, 5
_PADDING = re.compile(rb"\[PAD\d+\]|<\|?(dummy|pad|extra|reserved|unused)[^>]*>", re.IGNORECASE)

_KINDS = {"model": "tokenizer model", "pre": "pre-tokenizer"}
_SPECIALS = ("bos", "eos", "eot", "unknown", "separator")

# What llama.cpp assumes where a file does not say: src/llama-vocab.cpp of the bundled version.
_MODELS_ADDING_BOS = {"llama", "bert"}
_PRE_TOKENIZERS_ADDING_BOS = {
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
}
_MODELS_ADDING_EOS = {"t5"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """identical: every part is equal. padded: but for reserved ids at the end. incompatible: `reason` says how."""

    verdict: Literal["identical", "padded", "incompatible"]
    n_shared: int
    reason: str = ""

    def require(self) -> None:
        """Raise IncompatiblePair unless the pair can be used."""
        if self.verdict == "incompatible":
            raise IncompatiblePair(
                f"draft and target do not share a tokenizer: {self.reason}",
                "Use a draft of the same model family, or run the target alone: --drafter none.",
            )


def compare(target: Header, draft: Header) -> Comparison:
    """Compare the tokenizers of two models. A header without a tokenizer is incompatible with everything."""
    tokens, other = _tokens(target), _tokens(draft)
    if tokens is None or other is None:
        return Comparison("incompatible", 0, f"{(target if tokens is None else draft).name} has no tokenizer")
    for key, what in _KINDS.items():
        mine, theirs = _field(target, key), _field(draft, key)
        if mine != theirs:
            return Comparison("incompatible", 0, f"{what} {mine!r} in the target, {theirs!r} in the draft")
    shared = min(tokens.count, other.count)
    if tokens.raw != other.raw:
        mine, theirs = tokens.values, other.values
        differing = [i for i in range(shared) if mine[i] != theirs[i]]
        if differing:
            first = differing[0]
            return Comparison(
                "incompatible",
                shared,
                f"token {first} is {_show(mine[first])} in the target, {_show(theirs[first])} in the draft "
                f"({len(differing):,} of {shared:,} differ)",
            )
    reason = _types(target, draft, shared) or _merges(target, draft) or _specials(target, draft)
    if reason:
        return Comparison("incompatible", shared, reason)
    if tokens.count == other.count:
        return Comparison("identical", shared)
    longer = target if tokens.count > other.count else draft
    used = _first_used(longer, shared)
    if used is not None:
        text = _show(_tokens(longer).values[used])  # type: ignore[union-attr]
        sizes = f"the target has {tokens.count:,} tokens, the draft {other.count:,}"
        return Comparison("incompatible", shared, f"{sizes}, and token {used} of {longer.name} is {text}")
    role = "target" if longer is target else "draft"
    padding = abs(tokens.count - other.count)
    return Comparison("padded", shared, f"the {role}'s vocabulary ends in {padding:,} reserved ids that no model emits")


def _tokens(header: Header) -> StringArray | None:
    value = _field(header, "tokens")
    return value if isinstance(value, StringArray) and value.count else None


def _field(header: Header, key: str) -> Any:
    return header.metadata.get(f"tokenizer.ggml.{key}")


def _types(target: Header, draft: Header, shared: int) -> str:
    kinds = [_token_types(header, shared) for header in (target, draft)]
    differing = (kinds[0] != kinds[1]).nonzero()[0]
    if not differing.size:
        return ""
    first = int(differing[0])
    text = _show(_tokens(target).values[first])  # type: ignore[union-attr]
    return (
        f"token {first} ({text}) is of type {kinds[0][first]} in the target, {kinds[1][first]} in the draft "
        f"({differing.size:,} types differ)"
    )


def _token_types(header: Header, count: int) -> np.ndarray[Any, Any]:
    """The first `count` token types; a missing or short table counts as normal tokens, as in llama.cpp."""
    types = np.full(count, _NORMAL)
    given = _field(header, "token_type")
    if isinstance(given, np.ndarray):
        known = given[:count]
        types[: known.size] = known
    return types


def _merges(target: Header, draft: Header) -> str:
    mine, theirs = _field(target, "merges"), _field(draft, "merges")
    if not isinstance(mine, StringArray) or not isinstance(theirs, StringArray):
        return "" if mine is theirs else "only one of them has BPE merges"
    if mine.raw == theirs.raw:
        return ""
    for i, (a, b) in enumerate(zip(mine.values, theirs.values, strict=False)):
        if a != b:
            return f"merge {i} is {_show(a)} in the target, {_show(b)} in the draft"
    return f"the target has {mine.count:,} merges, the draft {theirs.count:,}"


def _specials(target: Header, draft: Header) -> str:
    for name in _SPECIALS:
        mine, theirs = _field(target, f"{name}_token_id"), _field(draft, f"{name}_token_id")
        if mine != theirs:
            return f"the {name.upper()} token is {mine} in the target, {theirs} in the draft"
    model, pre = _field(target, "model"), _field(target, "pre")
    default_bos = model in _MODELS_ADDING_BOS or (model == "gpt2" and pre in _PRE_TOKENIZERS_ADDING_BOS)
    for name, default in (("add_bos_token", default_bos), ("add_eos_token", model in _MODELS_ADDING_EOS)):
        mine, theirs = (_field(header, name) for header in (target, draft))
        if (default if mine is None else mine) != (default if theirs is None else theirs):
            return f"{name} is {mine} in the target, {theirs} in the draft"
    return ""


def _first_used(longer: Header, start: int) -> int | None:
    """The first id from `start` on that might be emitted; None if all are reserved."""
    tokens = _tokens(longer)
    if tokens is None:
        return None
    types = _token_types(longer, tokens.count)
    for i, text in enumerate(tokens.values[start:], start):
        if types[i] != _UNUSED and not _PADDING.fullmatch(text):
            return i
    return None


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
