"""Compares the tokenizers of two models by their GGUF headers, local or remote.

A draft model's token ids must mean the same as the target's. llama.cpp (common/speculative.cpp) compares the vocabulary
type, BOS and EOS if they are added, the size within 128, and the texts from id 5 on. This module also compares ids 0 to
4, token types and the special tokens. It is more tolerant in one point: reserved tokens that neither model emits may
have different names. Only the target tokenizes text, so it reports other merges or pre-tokenizers as harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from specdec_cli.decoding.errors import IncompatiblePair, SpecdecError
from specdec_cli.gguf.header import Header, StringArray, shown
from specdec_cli.gguf.vocabulary import (
    BYTE,
    UNUSED,
    TokenOverlap,
    Vocabulary,
    is_reduced,
    pre_tokenizer,
    quoted,
    read_reduced,
    token_overlap,
)

MAX_PADDING = 128
"""How much the sizes may differ: llama.cpp's SPEC_VOCAB_MAX_SIZE_DIFFERENCE."""
_FIRST_COMPARED = 5  # llama.cpp's SPEC_VOCAB_CHECK_START_TOKEN_ID

# Special tokens, and whether one of the files may leave the id out: llama.cpp finds EOT by its name, and the other two
# are never added to a text and never end it.
_SPECIALS = {"bos": False, "eos": False, "eot": True, "unknown": True, "separator": True}

_BPE = ("gpt2", "gemma4", "hybriddna", "whitespace")  # the same type in llama.cpp
_PRE_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}
_ASSUMED_IDS = {("llama", "bos"): 1, ("llama", "eos"): 2, ("gpt2", "bos"): 11, ("gpt2", "eos"): 11}

TEXTS = "token texts"

CheckOutcome = Literal["same", "harmless", "different"]
Compatibility = Literal["identical", "compatible", "reduced", "translatable", "incompatible"]


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison, with the value in each model. harmless: a difference that can't change the output.

    llama_cpp: whether llama.cpp would reject the pair for it.
    """

    what: str
    target: str
    draft: str
    outcome: CheckOutcome = "same"
    why: str = ""
    llama_cpp: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """identical: all parts are equal. compatible: they differ in nothing that drafts depend on. reduced: the draft has
    a part of the target's tokens. translatable: they differ, but the bytes of all tokens are known. incompatible: all
    other cases.

    n_shared: number of ids, from 0, in both models; for a reduced draft, all of the target's. n_differing: how many of
    them differ in text or type. overlap: for a translatable pair, the tokens with the same bytes.
    """

    verdict: Compatibility
    n_shared: int
    n_differing: int
    checks: tuple[Check, ...]
    overlap: TokenOverlap | None = None

    @property
    def reason(self) -> str:
        """Why: the most telling difference, otherwise the harmless ones; empty if identical."""
        grave = [check for check in self.checks if check.outcome == "different"]
        grave.sort(key=lambda check: check.what != TEXTS)  # a differing token is the most telling
        return grave[0].why if grave else "; ".join(check.why for check in self.checks if check.outcome == "harmless")

    @property
    def llama_cpp_accepts(self) -> bool:
        """Whether llama.cpp's own speculative decoding accepts the pair."""
        return not any(check.llama_cpp for check in self.checks)

    def require(self) -> None:
        """Raise IncompatiblePair if the pair can't be used."""
        if self.verdict == "incompatible":
            raise IncompatiblePair(
                f"draft and target do not share a tokenizer: {self.reason}",
                "Use a draft of the same model family, or run the target alone: --drafter none.",
            )


def compare(target: Header, draft: Header) -> Comparison:
    """Compare the tokenizers of two models. A header without a tokenizer is incompatible with everything."""
    mine, theirs = Vocabulary(target), Vocabulary(draft)
    if len(mine) and is_reduced(draft):
        return _reduced(mine, draft)
    if not (len(mine) and len(theirs)):
        counts = [f"{len(vocabulary):,}" if len(vocabulary) else "none" for vocabulary in (mine, theirs)]
        without = (theirs if len(mine) else mine).header.name
        missing = Check("vocabulary", counts[0], counts[1], "different", f"{without} has no tokenizer", True)
        return Comparison("incompatible", 0, 0, (missing,))
    shared = min(len(mine), len(theirs))
    types = np.flatnonzero(mine.types[:shared] != theirs.types[:shared]).tolist()
    texts: list[int] = []
    if mine.tokens != theirs.tokens:  # splitting them takes 0.1 s
        pairs = zip(mine.tokens.values, theirs.tokens.values, strict=False)
        texts = [i for i, (a, b) in enumerate(pairs) if a != b]
    bpe = all(str(vocabulary.field("model")) in _BPE for vocabulary in (mine, theirs))
    checks = (
        _model(mine, theirs, bpe),
        *((_pre(mine, theirs), _merges(mine, theirs)) if bpe else ()),  # other tokenizers ignore both
        _per_token(TEXTS, mine, theirs, texts, Vocabulary.text),
        _types(mine, theirs, types),
        _size(mine, theirs, shared),
        *(_special(mine, theirs, name) for name in _SPECIALS),
        *(_added(mine, theirs, name) for name in ("bos", "eos")),
    )
    outcomes = {check.outcome for check in checks}
    overlap = token_overlap(mine, theirs) if "different" in outcomes else None
    verdict: Compatibility = "compatible" if "harmless" in outcomes else "identical"
    if "different" in outcomes:
        verdict = "translatable" if overlap else "incompatible"
    return Comparison(verdict, shared, len({*texts, *types}), checks, overlap)


def _reduced(mine: Vocabulary, draft: Header) -> Comparison:
    """Check whether a draft with a part of a target's tokens was made for this target."""
    size, own = f"{len(mine):,}", "unknown"
    try:
        vocabulary = read_reduced(draft)
        own = f"{vocabulary.ids.size:,}" if vocabulary else own
        why = "" if vocabulary and vocabulary.is_of(mine.header) else f"{draft.name} was made for another target"
    except SpecdecError as error:
        why = str(error)
    if why:
        return Comparison("incompatible", 0, 0, (Check("vocabulary", size, own, "different", why, True),))
    why = f"the draft generates only {vocabulary} and reads the others as these"
    return Comparison("reduced", len(mine), 0, (Check("vocabulary", size, own, "harmless", why, True),))


def _model(mine: Vocabulary, theirs: Vocabulary, bpe: bool) -> Check:
    a, b = mine.field("model"), theirs.field("model")
    return _value("tokenizer model", a, b, _equal(a, b), "tokenizer model", llama_cpp=not bpe)


def _pre(mine: Vocabulary, theirs: Vocabulary) -> Check:
    a, b = mine.field("pre"), theirs.field("pre")
    names = {_PRE_ALIASES.get(name, name) for name in map(pre_tokenizer, (mine.header, theirs.header))}
    same = len(names) == 1 and isinstance(a, str | None) and isinstance(b, str | None)
    return _unread(_value("pre-tokenizer", a, b, same, "pre-tokenizer"))


def _unread(check: Check) -> Check:
    """The check of a part that only matters to the model that tokenizes."""
    if check.outcome == "same":
        return check
    return replace(check, outcome="harmless", why=f"{check.why}, but only the target tokenizes text")


def _added(mine: Vocabulary, theirs: Vocabulary, name: str) -> Check:
    what, a, b = f"add_{name}_token", mine.adds(name), theirs.adds(name)
    return _value(what, a, b, a == b, f"{what} is", llama_cpp=True)


def _special(mine: Vocabulary, theirs: Vocabulary, name: str) -> Check:
    what = f"{name.upper()} token"
    a, b = mine.field(f"{name}_token_id"), theirs.field(f"{name}_token_id")
    assumed = _ASSUMED_IDS.get((str(mine.field("model")), name))
    same = _equal(assumed if a is None else a, assumed if b is None else b)
    unused = _SPECIALS[name] or not (mine.adds(name) or theirs.adds(name))
    if unused and not same:
        why = f"the {what} is {_stated(a)} in the target, {_stated(b)} in the draft, and texts get neither"
        return Check(what, _stated(a), _stated(b), "harmless", why)
    llama_cpp = mine.adds(name) and theirs.adds(name)
    return _value(what, a, b, same, f"the {what} is", llama_cpp)


def _value(what: str, a: Any, b: Any, same: bool, subject: str, llama_cpp: bool = False) -> Check:
    """The check of a metadata value. subject: the start of the sentence about it."""
    if same:
        return Check(what, _stated(a), _stated(b))
    sides = [repr(shown(value)) if isinstance(value, str) else shown(value) for value in (a, b)]
    why = f"{subject} {sides[0]} in the target, {sides[1]} in the draft"
    return Check(what, _stated(a), _stated(b), "different", why, llama_cpp)


def _stated(value: Any) -> str:
    return "not stated" if value is None else shown(value)


def _equal(a: Any, b: Any) -> bool:
    """Whether two metadata values, of any type, are equal."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _per_token(
    what: str, mine: Vocabulary, theirs: Vocabulary, other: list[int], describe: Callable[[Vocabulary, int], str]
) -> Check:
    """The check of a property of each token. other: the ids whose property differs."""
    shared = min(len(mine), len(theirs))
    if not other:
        return Check(what, f"{shared:,}", "the same")
    outcome: CheckOutcome = "harmless"
    why = f"{len(other):,} reserved tokens have different {what.removeprefix('token ')}"
    used = next((i for i in other if not (mine.reserved(i) and theirs.reserved(i))), None)
    if used is not None:
        outcome = "different"
        why = f"token {used} is {describe(mine, used)} in the target, {describe(theirs, used)} in the draft "
        why += f"({len(other):,} of {shared:,} differ)"
    llama_cpp = what == TEXTS and other[-1] >= _FIRST_COMPARED
    return Check(what, f"{shared:,}", f"{len(other):,} differ", outcome, why, llama_cpp)


def _types(mine: Vocabulary, theirs: Vocabulary, other: list[int]) -> Check:
    """Types say how a target splits and shows text, but a draft model reads and writes only ids. So only bytes, whose
    texts are names, and unused tokens matter. other: the ids whose types differ.
    """
    grave = [i for i in other if {BYTE, UNUSED} & {int(mine.types[i]), int(theirs.types[i])}]
    if other and not grave:
        shared, count = f"{min(len(mine), len(theirs)):,}", f"{len(other):,}"
        return Check("token types", shared, f"{count} differ", "harmless", f"{count} tokens have another type")
    return _per_token("token types", mine, theirs, grave, lambda words, i: f"{words.text(i)} of type {words.types[i]}")


def _size(mine: Vocabulary, theirs: Vocabulary, shared: int) -> Check:
    sizes = (f"{len(mine):,}", f"{len(theirs):,}")
    padding = abs(len(mine) - len(theirs))
    if not padding:
        return Check("vocabulary", *sizes)
    longer, role = (mine, "target") if len(mine) > len(theirs) else (theirs, "draft")
    used = next((token for token in range(shared, len(longer)) if not longer.reserved(token)), None)
    if used is None and padding <= MAX_PADDING:
        why = f"the {role}'s vocabulary ends in {padding:,} reserved ids that no model emits"
        return Check("vocabulary", *sizes, "harmless", why)
    why = f"the target has {sizes[0]} tokens, the draft {sizes[1]}"
    if used is None:
        why += f"; sizes may differ by at most {MAX_PADDING}"
    else:
        why += f", and token {used} of {longer.header.name} is {longer.text(used)}"
    return Check("vocabulary", *sizes, "different", why, padding > MAX_PADDING)


def _merges(mine: Vocabulary, theirs: Vocabulary) -> Check:
    a, b = mine.field("merges"), theirs.field("merges")
    counts = [f"{merges.count:,}" if isinstance(merges, StringArray) else "none" for merges in (a, b)]
    why = f"the target has {counts[0]} merges, the draft {counts[1]}" if counts[0] != counts[1] else ""
    if not isinstance(a, StringArray) or not isinstance(b, StringArray):
        why = why and "only one of them has BPE merges"
    elif a != b:  # not only stored in different byte orders
        pairs = enumerate(zip(a.values, b.values, strict=False))
        other = (f"merge {i} is {quoted(x)} in the target, {quoted(y)} in the draft" for i, (x, y) in pairs if x != y)
        why = next(other, why)
    return _unread(Check("merges", counts[0], counts[1], "different" if why else "same", why))
