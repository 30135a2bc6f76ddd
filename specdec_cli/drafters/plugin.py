"""Drafters from other packages and programs. Their code may do anything, so it can't reach the state of the answer.

It gets copies, or objects that can't be written to. What it returns is checked and converted once. Whatever it raises,
even SystemExit, becomes an ordinary exception, and the answer continues without the drafter (`decoding.speculation`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.errors import Interrupted, reason_of
from specdec_cli.decoding.types import NO_DRAFT, Draft, DraftModel, LengthPolicy, Logits, Rows, Step
from specdec_cli.draft_length import DraftForm
from specdec_cli.drafters.drafter_context import DrafterContext

_ROUNDING = 1e-4
"""How far the probabilities of a distribution may sum from 1."""
_Result = TypeVar("_Result")


def form_of(spec: Any) -> DraftForm:
    """The form that a drafter states, or else the usual one."""
    form: DraftForm = getattr(spec, "form", DraftForm.GROWN if spec.needs_model else DraftForm.KNOWN)
    return form


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """What a package's class or a program's object declares; see `DrafterSpec`. guess: None if it has none."""

    name: str
    needs_model: bool
    needs: str
    helps: str
    token_s: float
    form: DraftForm
    nested_only: bool
    guess: Any
    make: Callable[[DrafterContext], Any]

    @classmethod
    def load(cls, entry: EntryPoint) -> PluginSpec:
        """Load the class of an entry point. Raises RuntimeError if it doesn't load or isn't a drafter."""
        return _called(lambda: cls._of(entry.name, entry.load()))

    @classmethod
    def of_object(cls, name: str, drafter: Any) -> PluginSpec:
        """The spec of a drafter that a program passes: an object with `propose`, for one answer at a time, or a class,
        of which each answer gets an object. Raises RuntimeError if it is neither.
        """
        own = isinstance(drafter, type) and hasattr(drafter, "create")
        return _called(lambda: cls._of(name, drafter if own else _Ready(drafter)))

    @classmethod
    def _of(cls, name: str, loaded: Any) -> PluginSpec:
        create = loaded.create
        needs, helps = getattr(loaded, "needs", ""), getattr(loaded, "helps", "")
        token_s = float(getattr(loaded, "token_s", 0.0))
        form = form_of(loaded)
        types = ((loaded.needs_model, bool), (needs, str), (helps, str), (form, DraftForm))
        if not (callable(create) and all(isinstance(value, kind) for value, kind in types)):
            raise TypeError("it is not a drafter")
        if not 0 <= token_s < np.inf:
            raise ValueError(f"token_s cannot be {token_s}")
        nested_only, guess = bool(getattr(loaded, "nested_only", False)), getattr(loaded, "guess", None)
        return cls(name, loaded.needs_model, needs, helps, token_s, form, nested_only, guess, create)

    def create(self, context: DrafterContext) -> PluginDrafter:
        return PluginDrafter(self, context)


class _Ready:
    """What a drafter declares that may lack all members but `propose`. drafter: the object, or its class."""

    needs_model = False

    def __init__(self, drafter: Any) -> None:
        if not callable(getattr(drafter, "propose", None)):
            raise TypeError("it has no propose method")
        self._drafter = drafter
        self.token_s, self.form = getattr(drafter, "token_s", 0.0), getattr(drafter, "form", DraftForm.KNOWN)

    def create(self, _context: DrafterContext) -> Any:
        return self._drafter() if isinstance(self._drafter, type) else self._drafter


class PluginDrafter:
    """A package's drafter, for one answer. It is created when it's first needed, and sees no steps before that."""

    def __init__(self, spec: PluginSpec, context: DrafterContext) -> None:
        self.name = spec.name
        self._sampler = copy(context.sampler)  # the target uses the original, whose constraint follows the answer
        self._sampler.constraint = None
        models = {"model": context.model, "small": context.small}
        own: dict[str, Any] = {
            name: _Model(each) if each and spec.needs_model else None for name, each in models.items()
        }
        self._make = partial(spec.make, replace(context, sampler=self._sampler, prompts=None, **own))
        self._drafter: Any = None

    def start(self, prompt: Sequence[int]) -> int:
        text = tuple(prompt)
        self._drafter = _called(self._make)
        read = _called(lambda: operator.index(self._optional("start", text) or 0))
        if not 0 <= read <= len(text):
            raise ValueError(f"it reports {read} tokens read of a prompt of {len(text)}")
        return read

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        text = tuple(context)
        self._sampler.follow(text)
        return _called(lambda: self._checked(self._drafter.propose(text, budget, policy), budget))

    def observe(self, step: Step) -> None:
        if self._drafter is not None:
            _called(lambda: self._optional("observe", step))

    def _optional(self, name: str, about: object) -> Any:
        """Call a method that the drafter may lack; then the result is None."""
        method = getattr(self._drafter, name, None)
        return method(about) if method else None

    def guess(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> Draft:
        text = tuple(context)
        self._sampler.follow(text)
        draft = _called(lambda: self._checked(self._drafter.guess(text, tuple(ahead), budget), budget))
        if len(draft.tokens) > budget or draft.parents is not None:
            raise ValueError(f"its guess is not a chain of at most {budget} tokens")
        return draft

    def forget(self, length: int) -> None:
        _called(lambda: self._drafter.forget(length))

    def _checked(self, draft: Any, budget: int) -> Draft:
        """A copy of a draft with plain numbers and own arrays; if it is too long, its first budget + 1 tokens. Raises
        TypeError or ValueError if it isn't a draft.
        """
        if not isinstance(draft, Draft):
            raise TypeError(f"it proposed {type(draft).__name__}, not Draft")
        if not (tokens := _whole(draft.tokens, budget)):
            return NO_DRAFT
        q = None
        if draft.q is not None:
            q = tuple(_distribution(*each) for each in zip(draft.q, tokens, strict=False))
        parents = None if draft.parents is None else _whole(draft.parents, budget)
        observer = None if draft.row_observer is None else partial(_show, draft.row_observer)
        return Draft(tokens, q, self.name, parents, observer)


class _Model:
    """A `DraftModel` for a package's drafter. llama.cpp ends the process if it is asked for too many rows, and its rows
    are gone when it is closed, so they are counted and copied here.
    """

    def __init__(self, model: DraftModel) -> None:
        self.n_ctx, self.n_vocab, self.max_rows = model.n_ctx, model.n_vocab, model.max_rows
        self.rewinds = model.rewinds
        self.begin_draft = model.begin_draft
        self._model = model

    @property
    def length(self) -> int:
        return self._model.length

    def unread(self, text: Sequence[int]) -> int:
        return self._model.unread(tuple(text))

    def begin(self, text: Sequence[int]) -> int:
        return self._model.begin(tuple(text))

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        return self._model.make_room(tuple(news), max(operator.index(more), 0))

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        tokens = self._tokens(tokens, self.max_rows if all_rows else self.n_ctx)
        return np.array(self._model.decode(tokens, bool(all_rows)))

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        tokens = self._tokens(tokens, self.max_rows)
        above = _whole(parents, len(tokens))
        if len(above) != len(tokens) or min(above) < -1:
            raise ValueError("each node of a tree needs one parent: -1 or an earlier node")
        return np.array(self._model.grow(tokens, above))

    def keep(self, path: Sequence[int]) -> None:
        self._model.keep(_whole(path, self.n_ctx))

    def end_draft(self, length: int) -> None:
        self._model.end_draft(max(operator.index(length), 0))

    def rewind(self, length: int) -> None:
        self._model.rewind(max(operator.index(length), 0))

    def _tokens(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        read = _whole(tokens, most)
        if not (0 < len(read) <= most and 0 <= min(read) <= max(read) < self.n_vocab):
            raise ValueError(f"a pass reads 1 to {most} tokens, each from 0 to {self.n_vocab - 1}")
        return read


class _RowCopies:
    """Copies of rows, while `rows` is set."""

    def __init__(self, rows: Rows) -> None:
        self.rows: Rows | None = rows

    def __getitem__(self, number: int) -> NDArray[np.float32]:
        if self.rows is None:
            raise ValueError("rows can be read only while they are shown")
        return np.array(self.rows[number])


def _show(observer: Callable[[Rows], None], rows: Rows) -> None:
    copies = _RowCopies(rows)
    try:
        _called(lambda: observer(copies))
    finally:
        copies.rows = None


def _called(action: Callable[[], _Result]) -> _Result:
    """Run a package's code and return its result. Whatever it raises becomes RuntimeError, except interrupts."""
    try:
        return action()
    except (KeyboardInterrupt, Interrupted):
        raise
    except BaseException as error:
        raise RuntimeError(reason_of(error)) from None


def _whole(numbers: Iterable[Any], budget: int) -> tuple[int, ...]:
    """Integers as Python ints: at most budget + 1 of them, because there may be infinitely many."""
    return tuple(operator.index(number) for number in islice(numbers, budget + 1))


def _distribution(q: Any, token: int) -> Categorical:
    """A copy of a distribution in own arrays. Raises ValueError if `token` can't be drawn from it."""
    probs, ids = np.array(q.probs), None if q.ids is None else np.array(q.ids)
    valid = probs.dtype.kind == "f" and probs.ndim == 1 and probs.size > 0
    valid = valid and bool(((probs >= 0) & (probs <= 1 + _ROUNDING)).all())
    valid = valid and abs(probs.sum(dtype=np.float64) - 1) < _ROUNDING
    if valid and ids is not None:
        valid = ids.dtype.kind in "iu" and ids.shape == probs.shape
        ids = ids.astype(np.int64)
        valid = valid and ids[0] >= 0 and bool((ids[1:] > ids[:-1]).all())
    if not valid or (own := Categorical(ids, probs)).prob(token) <= 0:
        raise ValueError("its q is not a distribution, or gives the token no probability")
    return own
