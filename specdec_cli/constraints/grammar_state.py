"""Tracks an answer's position in its grammar, and masks the tokens that may follow, with llguidance."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specdec_cli.constraints.grammar import Grammar
from specdec_cli.decoding.constraint import Mask
from specdec_cli.decoding.errors import SpecdecError, UsageError

_MAX_REQUIRED = 1024
"""How much of a required text is tokenized at each position: all of a long one would take quadratic time."""
_THINKING = (
    *(("<think>", "</think>", b""), ("[THINK]", "[/THINK]", b""), ("<|channel>", "<channel|>", b"")),
    ("<|channel|>", "<|message|>", b"final"),
)
"""What begins thoughts, what ends them, and how the text between must begin where that isn't enough: gpt-oss writes
several messages, with the name of a channel before each.
"""


class TokenVocabulary(Protocol):
    """The methods needed from a model, such as `llama.model.Model`."""

    n_vocab: int
    piece: Callable[[int], bytes]
    is_end: Callable[[int], bool]

    def tokenize(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]: ...


class _Mode(Enum):
    """FREE: in a thinking block, where only end tokens are forbidden. OPEN: at the start, where a thinking block may
    begin. BOUND: constrained by the grammar. LOST: after a token that the grammar forbids.
    """

    FREE, OPEN, BOUND, LOST = range(4)


class GrammarState:
    """The `Constraint` of one answer. written: how many of the prompt's last tokens belong to the answer."""

    def __init__(self, vocabulary: TokenVocabulary, grammar: Grammar, written: int = 0) -> None:
        self._vocabulary = vocabulary  # keeps it alive: the tokenizer has only a weak reference
        self._tokens, self._no_end = _tokens_of(vocabulary)
        self._n_vocab, self._written = vocabulary.n_vocab, written
        self._start = matcher_of(vocabulary, grammar)
        self._matcher = self._start
        self._begin, self._end, self._header = _thinking_of(vocabulary)
        self._mode = _Mode.BOUND
        self._context: Sequence[int] = ()
        self._seen = 0
        """Tokens of the context that the state has consumed."""
        self._path: list[tuple[int, _Mode, bool]] = []
        """The tokens consumed after those, each with the mode before it and whether the matcher consumed it."""
        self._masks: dict[tuple[int, ...], Mask | None] = {}
        """Masks by the tokens after the context."""
        self._masks_at = -1

    def begin(self, context: Sequence[int], prompt_tokens: int) -> None:
        self._matcher = self._start.deep_copy()
        prompt_tokens -= self._written
        self._context, self._seen, self._path, self._masks_at = context, prompt_tokens, [], -1
        self._mode = self._mode_after(context[:prompt_tokens])

    def mask(self, ahead: Sequence[int] = ()) -> Mask | None:
        if self._masks_at != len(self._context):
            self._masks.clear()
            self._masks_at = len(self._context)
        key = tuple(ahead)
        if key not in self._masks:
            self._follow(key)
            self._masks[key] = self._present_mask()
        return self._masks[key]

    def forced(self, ahead: Sequence[int] = ()) -> int | None:
        mask = self.mask(ahead)
        return int(mask.argmax()) if mask is not None and np.count_nonzero(mask) == 1 else None

    def expected(self, most: int) -> list[int]:
        self._follow(())
        if self._mode is not _Mode.BOUND:
            return []
        tokens: list[int] = self._tokens.tokenize_bytes(self._matcher.compute_ff_bytes()[:_MAX_REQUIRED])
        return tokens[:most]

    def completed(self, context: Sequence[int], prompt_tokens: int) -> bool:
        self.begin(context, prompt_tokens)
        self._follow(())
        return self._mode is _Mode.BOUND and bool(self._matcher.is_accepting())

    def allowed(self, tokens: Sequence[int]) -> int:
        for place, token in enumerate(tokens):
            mask = self.mask(tokens[:place])
            if mask is not None and not (0 <= token < mask.size and mask[token]):
                return place
        return len(tokens)

    def _follow(self, ahead: Sequence[int]) -> None:
        """Move the state to the end of the context followed by `ahead`."""
        news = self._context[self._seen :]
        wanted = [*news, *ahead]
        same = 0
        while same < min(len(self._path), len(wanted)) and self._path[same][0] == wanted[same]:
            same += 1
        self._go_back(len(self._path) - same)
        for token in wanted[same:]:
            self._take(token)
        self._seen += len(news)
        del self._path[: len(news)]

    def _go_back(self, count: int) -> None:
        if count:
            dropped = self._path[-count:]
            del self._path[-count:]
            self._mode = dropped[0][1]
            if matched := sum(matched for _, _, matched in dropped):
                self._matcher.rollback(matched)

    def _take(self, token: int) -> None:
        before, matched = self._mode, False
        if before is _Mode.OPEN and token == self._begin:
            self._mode = _Mode.FREE
        elif before in (_Mode.OPEN, _Mode.BOUND):
            matched = self._matcher.try_consume_tokens([token]) == 1
            self._require_sound()
            self._mode = _Mode.BOUND if matched else _Mode.LOST
        elif before is _Mode.FREE and token == self._end:
            written = (*self._context[: self._seen], *(token for token, _, _ in self._path))
            self._mode = self._mode_at_end(written)
        self._path.append((token, before, matched))

    def _present_mask(self) -> Mask | None:
        if self._mode in (_Mode.FREE, _Mode.LOST):
            return self._no_end if self._mode is _Mode.FREE else None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._require_sound()
        mask: Mask = np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)
        if not mask.any():
            raise SpecdecError("the grammar allows no token of this model here", "Use another grammar.")
        if self._mode is _Mode.BOUND and self._matcher.is_stopped():
            # The answer ends in the same way whether this row is reached by a draft or not: with the first end token.
            mask[mask.argmax() + 1 :] = False
        if self._mode is _Mode.OPEN:
            mask[self._begin] = True
        return mask

    def _require_sound(self) -> None:
        """Raise SpecdecError if llguidance has exceeded its own limits."""
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            raise SpecdecError(f"the grammar became too large: {reason}", "Use a simpler grammar.")

    def _mode_after(self, prompt: Sequence[int]) -> _Mode:
        """The mode at the end of a prompt. Marks in earlier messages don't count."""
        marks = self._begin, self._end
        at = next(
            (i for i in reversed(range(len(prompt))) if prompt[i] in marks or self._begins_message(prompt[i])), -1
        )
        if at >= 0 and prompt[at] in marks:
            return _Mode.FREE if prompt[at] == self._begin else self._mode_at_end(prompt[:at])
        return _Mode.OPEN if self._begin >= 0 else _Mode.BOUND

    def _mode_at_end(self, before: Sequence[int]) -> _Mode:
        """The mode after the token that can end thoughts, which follows `before`."""
        header = b""
        for token in reversed(before) if self._header else ():
            if token == self._begin:
                return _Mode.BOUND if header.startswith(self._header) else _Mode.FREE
            if self._begins_message(token):
                return _Mode.OPEN
            header = self._vocabulary.piece(token) + header
        return _Mode.BOUND

    def _begins_message(self, token: int) -> bool:
        """Whether a token stands between the messages of a conversation: control tokens are without text."""
        return self._vocabulary.piece(token) in (b"", b"<|start|>")


def matcher_of(vocabulary: TokenVocabulary, grammar: Grammar) -> LLMatcher:
    """An answer's first matcher, to be copied. The grammar keeps it: it may take as long as `grammar.compiled`."""
    if (found := grammar.matchers.get(vocabulary)) is None:
        found = LLMatcher(_tokens_of(vocabulary)[0], grammar.compiled(), log_level=0)
        found.compute_bitmask()  # which takes long where much text is required
        grammar.matchers[vocabulary] = found
    return found


_known: weakref.WeakKeyDictionary[Any, tuple[LLTokenizer, Mask]] = weakref.WeakKeyDictionary()


def _tokens_of(vocabulary: TokenVocabulary) -> tuple[LLTokenizer, Mask]:
    """A model's tokenizer for llguidance, and a mask of all tokens but the end tokens. Cached because 150,000 tokens
    take a second.
    """
    if vocabulary not in _known:
        ends = [token for token in range(vocabulary.n_vocab) if vocabulary.is_end(token)]
        if not ends:
            raise UsageError("a grammar needs an end token; this model has none", "Use another model, or no grammar.")
        tokens = LLTokenizer(_Pieces(vocabulary, ends[0]), n_vocab=vocabulary.n_vocab, eos_token=ends)
        _known[vocabulary] = tokens, ~np.isin(np.arange(vocabulary.n_vocab), ends)
    return _known[vocabulary]


class _Pieces(TokenizerWrapper):
    """The tokenizer interface of llguidance."""

    def __init__(self, vocabulary: TokenVocabulary, end: int) -> None:
        self.eos_token_id, self.bos_token_id = end, None
        self.tokens = [vocabulary.piece(token) for token in range(vocabulary.n_vocab)]
        self.special_token_ids = [token for token, piece in enumerate(self.tokens) if not piece]
        self.is_tokenizer_wrapper = True
        self._vocabulary = weakref.proxy(vocabulary)

    def __call__(self, text: str) -> list[int]:
        tokens: list[int] = self._vocabulary.tokenize(text[:_MAX_REQUIRED], add_bos=False, special=False)
        return tokens


def _thinking_of(vocabulary: TokenVocabulary) -> tuple[int, int, bytes]:
    """The tokens that begin and end thoughts, -1 if the model has none, and the header between them."""
    for begin, end, header in _THINKING:
        tokens = [vocabulary.tokenize(name, add_bos=False) for name in (begin, end)]
        if all(len(each) == 1 for each in tokens):
            return tokens[0][0], tokens[1][0], header
    return -1, -1, b""
