"""Do two models share a tokenizer? Answered from the GGUF headers alone, local or remote.

A draft is only useful if its token ids mean what the target's mean. llama.cpp (common/speculative.cpp) compares
the vocabulary type, BOS and EOS where they are added, the size within 128, and the texts from id 5 on. Here
ids 0 to 4, token types, merges, the pre-tokenizer and the special tokens count too; only in one thing is this
rule the milder: reserved tokens that neither model emits may have different names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from specdec_cli.decoding.errors import IncompatiblePair
from specdec_cli.models.gguf import Header, StringArray, shown

MAX_PADDING = 128
"""Ids by which the sizes may differ: llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE."""
_FIRST_COMPARED = 5  # llama.cpp's SPEC_VOCAB_CHECK_START_TOKEN_ID

_NORMAL, _UNUSED = 1, 5
_PADDING = re.compile(rb"\[PAD\d+\]")  # what the converter fills a vocabulary up with
_RESERVED = re.compile(
    rb"<\|?(dummy|pad|extra|reserved|unused|(image|audio|video)_(soft_token|token|pad))[^>]*>", re.IGNORECASE
)
_EMITTED = ("bos", "eos", "eot", "eom")

# Special tokens, and whether it is of no consequence that only one of the files says which it is: llama.cpp finds EOT
# by its name, and neither of the others is ever added to a text or ends it.
_SPECIALS = {"bos": False, "eos": False, "eot": True, "unknown": True, "separator": True}

# What llama.cpp assumes where a file does not say: src/llama-vocab.cpp of the bundled version.
_MODELS_ADDING_BOS = {"llama", "bert"}
_PRE_TOKENIZERS_ADDING_BOS = {
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    *("tekken", "chameleon"),
}
_BPE = ("gpt2", "gemma4", "hybriddna", "whitespace")
_PRE_ALIASES = {"None": "default", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}  # None: not stated
_ASSUMED_IDS = {("llama", "bos"): 1, ("llama", "eos"): 2, ("gpt2", "bos"): 11, ("gpt2", "eos"): 11}
_MODELS_ADDING_EOS = {"t5"}

TEXTS = "token texts"

Outcome = Literal["same", "harmless", "different"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing compared, as it is in either model.

    harmless: a difference that cannot change what is decoded. why: what differs, if anything.
    llama_cpp: whether llama.cpp's own rule would refuse the pair over it.
    """

    what: str
    target: str
    draft: str
    outcome: Outcome
    why: str = ""
    llama_cpp: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """identical: every part is equal. compatible: but for reserved ids. incompatible: `reason` says how.

    n_shared:    ids from 0 on that both models have.
    n_differing: ids among them whose text or type differs, harmlessly or not.
    """

    verdict: Literal["identical", "compatible", "incompatible"]
    n_shared: int
    n_differing: int
    checks: tuple[Check, ...]

    @property
    def reason(self) -> str:
        """What decided the verdict: the first difference that counts, else those that do not; empty if identical."""
        grave = [check for check in self.checks if check.outcome == "different"]
        grave.sort(key=lambda check: check.what != TEXTS)  # of several, a token says most: which, and what in either
        return grave[0].why if grave else "; ".join(check.why for check in self.checks if check.outcome == "harmless")

    @property
    def llama_cpp_accepts(self) -> bool:
        """Whether llama.cpp's own speculative decoding would take the pair."""
        return not any(check.llama_cpp for check in self.checks)

    def require(self) -> None:
        """Raise IncompatiblePair unless the pair can be used."""
        if self.verdict == "incompatible":
            raise IncompatiblePair(
                f"draft and target do not share a tokenizer: {self.reason}",
                "Use a draft of the same model family, or run the target alone: --drafter none.",
            )


def digest(header: Header) -> str:
    """A name for everything in a header that decides how text becomes tokens."""
    found = hashlib.sha256()
    for key, value in sorted(header.metadata.items()):
        if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template"):
            data = value.raw if isinstance(value, StringArray) else np.asarray(value).tobytes()
            found.update(f"{key} {len(data)} ".encode())
            found.update(data)
    return found.hexdigest()


def compare(target: Header, draft: Header) -> Comparison:
    """Compare the tokenizers of two models. A header without a tokenizer is incompatible with everything."""
    tokens = [_tokens(header) for header in (target, draft)]
    if None in tokens:
        counts = [f"{found.count:,}" if found else "none" for found in tokens]
        without = (target if tokens[0] is None else draft).name
        missing = Check("vocabulary", counts[0], counts[1], "different", f"{without} has no tokenizer", True)
        return Comparison("incompatible", 0, 0, (missing,))
    mine, theirs = _Vocabulary(target), _Vocabulary(draft)
    shared = min(len(mine), len(theirs))
    differing = _differing(mine, theirs, shared)
    checks = (
        _kind("tokenizer model", mine.field("model"), theirs.field("model"), _BPE),
        _pre(mine, theirs),
        _texts(mine, theirs, differing, shared),
        _types(mine, theirs, differing, shared),
        _size(mine, theirs, shared),
        _merges(mine, theirs),
        *(_special(mine, theirs, name) for name in _SPECIALS),
        *(_added(mine, theirs, name) for name in ("bos", "eos")),
    )
    outcomes = {check.outcome for check in checks}
    verdict: Literal["identical", "compatible", "incompatible"] = (
        "incompatible" if "different" in outcomes else "compatible" if "harmless" in outcomes else "identical"
    )
    return Comparison(verdict, shared, len(differing), checks)


class _Vocabulary:
    """A header's tokenizer, its parts read once."""

    def __init__(self, header: Header) -> None:
        self.header = header
        tokens = _tokens(header)
        if tokens is None:
            raise ValueError("no tokenizer")
        self.tokens = tokens
        self.types = _token_types(header, tokens.count)
        named = [self.field(f"{name}_token_id") for name in _EMITTED]
        self._named = {token for token in named if isinstance(token, int)}

    def __len__(self) -> int:
        return self.tokens.count

    def field(self, key: str) -> Any:
        return self.header.metadata.get(f"tokenizer.ggml.{key}")

    def text(self, token: int) -> str:
        return _show(self.tokens.values[token])

    def reserved(self, token: int) -> bool:
        """Whether no model emits this token: by its type, or its name if it is no normal token, and unless it ends or
        begins a text.
        """
        if token in self._named:
            return False
        kind, text = self.types[token], self.tokens.values[token]
        named = _PADDING.fullmatch(text) or (kind != _NORMAL and _RESERVED.fullmatch(text))
        return bool(kind == _UNUSED or named)


def _tokens(header: Header) -> StringArray | None:
    value = header.metadata.get("tokenizer.ggml.tokens")
    return value if isinstance(value, StringArray) and value.count else None


def _token_types(header: Header, count: int) -> np.ndarray[Any, Any]:
    """The token types; a missing or short table counts as normal tokens, as in llama.cpp."""
    types = np.full(count, _NORMAL)
    given = header.metadata.get("tokenizer.ggml.token_type")
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu":
        known = given[:count]
        types[: known.size] = known
    return types


def _differing(mine: _Vocabulary, theirs: _Vocabulary, shared: int) -> list[int]:
    """The shared ids whose text or type differs."""
    found = set((mine.types[:shared] != theirs.types[:shared]).nonzero()[0].tolist())
    if mine.tokens != theirs.tokens:
        texts = zip(mine.tokens.values, theirs.tokens.values, strict=False)
        found |= {i for i, (a, b) in enumerate(texts) if a != b}
    return sorted(found)


def _kind(what: str, mine: Any, theirs: Any, alike: Sequence[str]) -> Check:
    """alike: values that llama.cpp treats as one type."""
    values = (_stated(mine), _stated(theirs))
    if _equal(mine, theirs):
        return Check(what, *values, "same")
    why = f"{what} {_quoted(mine)} in the target, {_quoted(theirs)} in the draft"
    return Check(what, *values, "different", why, not (str(mine) in alike and str(theirs) in alike))


def _pre(mine: _Vocabulary, theirs: _Vocabulary) -> Check:
    a, b = mine.field("pre"), theirs.field("pre")
    names = [_PRE_ALIASES.get(str(value), str(value)) for value in (a, b)]
    if names[0] == names[1] and isinstance(a, str | None) and isinstance(b, str | None):
        return Check("pre-tokenizer", _stated(a), _stated(b), "same")
    why = f"pre-tokenizer {_quoted(a)} in the target, {_quoted(b)} in the draft"
    return Check("pre-tokenizer", _stated(a), _stated(b), "different", why)


def _size(mine: _Vocabulary, theirs: _Vocabulary, shared: int) -> Check:
    sizes = (f"{len(mine):,}", f"{len(theirs):,}")
    padding = abs(len(mine) - len(theirs))
    if not padding:
        return Check("vocabulary", *sizes, "same")
    longer, role = (mine, "target") if len(mine) > len(theirs) else (theirs, "draft")
    used = next((token for token in range(shared, len(longer)) if not longer.reserved(token)), None)
    counts = f"the target has {sizes[0]} tokens, the draft {sizes[1]}"
    too_many = padding > MAX_PADDING
    if used is not None:
        why = f"{counts}, and token {used} of {longer.header.name} is {longer.text(used)}"
        return Check("vocabulary", *sizes, "different", why, too_many)
    if too_many:
        why = f"{counts}; sizes may differ by {MAX_PADDING} at most"
        return Check("vocabulary", *sizes, "different", why, True)
    why = f"the {role}'s vocabulary ends in {padding:,} reserved ids that no model emits"
    return Check("vocabulary", *sizes, "harmless", why)


def _texts(mine: _Vocabulary, theirs: _Vocabulary, differing: list[int], shared: int) -> Check:
    a, b = (mine.tokens.values, theirs.tokens.values) if differing else ([], [])  # splitting them takes 0.1 s
    other = [i for i in differing if a[i] != b[i]]
    if not other:
        return Check(TEXTS, f"{shared:,}", "the same", "same")
    counted = (f"{shared:,}", f"{len(other):,} differ")
    llama_cpp = other[-1] >= _FIRST_COMPARED
    grave = next((i for i in other if not (mine.reserved(i) and theirs.reserved(i))), None)
    first = other[0] if grave is None else grave
    why = f"token {first} is {_show(a[first])} in the target, {_show(b[first])} in the draft"
    if grave is None:
        return Check(TEXTS, *counted, "harmless", f"{len(other):,} reserved tokens have other names", llama_cpp)
    return Check(TEXTS, *counted, "different", f"{why} ({len(other):,} of {shared:,} differ)", llama_cpp)


def _types(mine: _Vocabulary, theirs: _Vocabulary, differing: list[int], shared: int) -> Check:
    other = [i for i in differing if mine.types[i] != theirs.types[i]]
    if not other:
        return Check("token types", f"{shared:,}", "the same", "same")
    counted = (f"{shared:,}", f"{len(other):,} differ")
    first = next((i for i in other if not (mine.reserved(i) and theirs.reserved(i))), None)
    if first is None:
        return Check("token types", *counted, "harmless", f"{len(other):,} reserved tokens have other types")
    why = (
        f"token {first} ({mine.text(first)}) is of type {mine.types[first]} in the target, {theirs.types[first]} in "
        f"the draft ({len(other):,} types differ)"
    )
    return Check("token types", *counted, "different", why)


def _merges(mine: _Vocabulary, theirs: _Vocabulary) -> Check:
    a, b = mine.field("merges"), theirs.field("merges")
    counted = (_count(a), _count(b))
    if not isinstance(a, StringArray) or not isinstance(b, StringArray):
        if counted[0] == counted[1]:
            return Check("merges", *counted, "same")
        return Check("merges", *counted, "different", "only one of them has BPE merges")
    if a == b:
        return Check("merges", *counted, "same")
    pairs = enumerate(zip(a.values, b.values, strict=False))
    first = next(((i, x, y) for i, (x, y) in pairs if x != y), None)
    if first is not None:
        i, x, y = first
        why = f"merge {i} is {_show(x)} in the target, {_show(y)} in the draft"
    elif a.count != b.count:
        why = f"the target has {counted[0]} merges, the draft {counted[1]}"
    else:  # equal, but stored in different byte orders
        return Check("merges", *counted, "same")
    return Check("merges", *counted, "different", why)


def _count(merges: Any) -> str:
    return f"{merges.count:,}" if isinstance(merges, StringArray) else "none"


def _special(mine: _Vocabulary, theirs: _Vocabulary, name: str) -> Check:
    what = f"{name.upper()} token"
    a, b = mine.field(f"{name}_token_id"), theirs.field(f"{name}_token_id")
    values = (_stated(a), _stated(b))
    if _equal(a, b):
        return Check(what, *values, "same")
    unused = _SPECIALS[name] or not (_adds(mine, name) or _adds(theirs, name))
    if unused and (a is None or b is None):
        return Check(what, *values, "harmless", f"only one of the files says which token is the {name.upper()} token")
    why = f"the {what} is {_quoted(a)} in the target, {_quoted(b)} in the draft"
    assumed = _ASSUMED_IDS.get((str(mine.field("model")), name))
    same = _equal(assumed if a is None else a, assumed if b is None else b)
    return Check(what, *values, "different", why, not same and _adds(mine, name) and _adds(theirs, name))


def _added(mine: _Vocabulary, theirs: _Vocabulary, name: str) -> Check:
    what = f"add_{name}_token"
    a, b = mine.field(what), theirs.field(what)
    values = (_stated(a), _stated(b))
    if _adds(mine, name) == _adds(theirs, name):
        return Check(what, *values, "same")
    return Check(what, *values, "different", f"{what} is {_quoted(a)} in the target, {_quoted(b)} in the draft", True)


def _adds(vocabulary: _Vocabulary, name: str) -> bool:
    """Whether texts begin (BOS) or end (EOS) with this token, as llama.cpp decides it."""
    given = vocabulary.field(f"add_{name}_token")
    if name == "bos" and _equal(vocabulary.field("pre"), "gemma4"):
        return True
    if isinstance(given, bool):
        return given
    model, pre = (str(vocabulary.field(key)) for key in ("model", "pre"))
    if name == "eos":
        return model in _MODELS_ADDING_EOS
    return name == "bos" and (model in _MODELS_ADDING_BOS or (model == "gpt2" and pre in _PRE_TOKENIZERS_ADDING_BOS))


def _equal(a: Any, b: Any) -> bool:
    """Whether two values of the metadata, which may be anything, are the same."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))


def _quoted(value: Any) -> str:
    """A value of the metadata for a sentence."""
    return repr(shown(value)) if isinstance(value, str) else shown(value)


def _stated(value: Any) -> str:
    """A value of the metadata for a table."""
    return "not stated" if value is None else shown(value)
