"""The training data: prompts, the target's answers to them, and what the target computes for each token.

It is saved in files, so recording can be killed at any time and continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specdec_cli.chat import saved_conversations
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.types import Logits
from specdec_cli.engine.session import Session
from specdec_cli.gguf.vocabulary import Vocabulary
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.model import Model
from specdec_cli.measure.suites import SuitePrompt, in_turn, tuning_prompts
from specdec_cli.settings.options import SamplingParams
from specdec_cli.user_files import replacing
from specdec_cli.weights.prompt import Prompt

Report = Callable[[int, int, float], None]
"""Called with the tokens recorded so far, the tokens wanted, and the seconds left."""

SEED = 1
_CHUNK = 64
"""Tokens per pass, each with a row of logits: a fixed number, because passes of other sizes round differently."""
LIKELIEST = 64
"""How many of the target's most likely tokens are kept for each position."""
_UNKNOWN = 2
"""A token's type, as in llama.cpp."""
CONVERSATIONS = "conversations"
"""As a name of prompts: all saved conversations."""


@dataclass(frozen=True, slots=True)
class RecordedText:
    """One text, in a file of its own, so that recording can be resumed. For each of its T tokens: the target's most
    likely next tokens and their log-probabilities, (T, LIKELIEST), and its hidden rows, (T, any). prompt: how many
    tokens are the prompt's.
    """

    tokens: NDArray[np.int32]
    likeliest: NDArray[np.int32]
    log_p: NDArray[np.float16]
    rows: NDArray[np.float16]
    prompt: int

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            np.savez(
                file, tokens=self.tokens, likeliest=self.likeliest, log_p=self.log_p, rows=self.rows, prompt=self.prompt
            )

    @classmethod
    def load(cls, path: Path) -> RecordedText:
        with np.load(path) as file:
            return cls(file["tokens"], file["likeliest"], file["log_p"], file["rows"], int(file["prompt"]))


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """The tokens of each prompt to train on, and of others to measure on, from all categories in turn. notes: what was
    left out.
    """

    train: dict[SuitePrompt, list[int]]
    held_out: dict[SuitePrompt, list[int]]
    notes: tuple[str, ...]


def training_prompts(
    session: Session, prompts: str | None, held_out: str | None, longest: int, raw: bool
) -> TrainingPrompts:
    """The prompts of a suite, a file, or saved conversations; by default the mixture that `tune` uses.

    longest: in tokens; longer prompts are skipped. Raises UsageError if too few are left.
    """
    usable, notes = _usable(session, _named(session, prompts), longest, raw)
    if held_out is None:
        apart = {prompt: usable[prompt] for prompt in _fifth(usable, whole=prompts == CONVERSATIONS)}
    else:
        apart, more = _usable(session, _named(session, held_out), longest, raw)
        notes += more
    known, lengths = {tuple(tokens) for tokens in apart.values()}, {len(tokens) for tokens in apart.values()}
    # Conversations that were saved under two names share turns.
    train = {p: tokens for p, tokens in usable.items() if known.isdisjoint(tuple(tokens[:n]) for n in lengths)}
    if not train or not apart:
        what = "there are too few usable prompts: training needs at least one to learn from and one to measure on"
        raise UsageError(what, f"Give more --prompts, of at most {longest} tokens each, or others with --held-out.")
    return TrainingPrompts(dict(in_turn(train)), dict(in_turn(apart)), notes)


def _fifth(prompts: Iterable[SuitePrompt], whole: bool) -> list[SuitePrompt]:
    """One prompt in five, spread over the categories. whole: all of one category in five instead, because a
    conversation's later turns include the earlier ones; if there is only one, its last turns.
    """
    ordered = sorted(prompts, key=lambda prompt: prompt.category)
    names = list(dict.fromkeys(prompt.category for prompt in ordered))
    if not whole:
        return ordered[::5]
    if len(names) == 1:
        return ordered[-len(ordered) // 5 :]
    return [prompt for prompt in ordered if prompt.category in names[::5]]


def _named(session: Session, name: str | None) -> list[tuple[SuitePrompt, Prompt]]:
    """Prompts, each with the input that the engine tokenizes."""
    if name != CONVERSATIONS:
        return [(prompt, prompt.text) for prompt in tuning_prompts(session.pair.target_path, name)]
    turns: list[tuple[SuitePrompt, Prompt]] = []
    for kept in saved_conversations.CONVERSATIONS.names():
        messages = [{"role": each.role, "content": each.content} for each in saved_conversations.read(kept).messages]
        for number, message in enumerate(messages):
            if message["role"] == "user":
                prompt = SuitePrompt(f"{kept}/{number}", kept, message["content"])
                turns.append((prompt, messages[: number + 1]))
    if not turns:
        raise UsageError(
            "there are no saved conversations", "Save one with /save NAME in specdec chat, or give a file of prompts."
        )
    return turns


def _usable(
    session: Session, prompts: Iterable[tuple[SuitePrompt, Prompt]], longest: int, raw: bool
) -> tuple[dict[SuitePrompt, list[int]], tuple[str, ...]]:
    ids = (session.pair.target.scalar(f"tokenizer.ggml.{name}_token_id") for name in ("unknown", "bos", "eos", "eot"))
    unknown, *usual = ids
    if unknown in usual and _UNKNOWN not in Vocabulary(session.pair.target).types[unknown:][:1]:
        unknown = None  # ordinary texts have it, as in Granite 3
    usable: dict[SuitePrompt, list[int]] = {}
    long = foreign = 0
    for prompt, given in prompts:
        try:
            tokens = session.tokenize(given, raw=raw)
        except UsageError:
            raise
        except SpecdecError:  # it has no tokens
            continue
        long += len(tokens) > longest
        foreign += unknown in tokens
        if len(tokens) <= longest and unknown not in tokens:
            usable[prompt] = tokens
    if foreign and not usable:
        what = "the target's tokenizer cannot encode the prompts"
        raise UsageError(what, "Give prompts in a language that the target knows.")
    notes = [f"prompts skipped because they have more than {longest} tokens: {long:,}"] if long else []
    if foreign:
        notes.append(f"prompts skipped because the tokenizer cannot encode them: {foreign:,}")
    return usable, tuple(notes)


@dataclass(frozen=True, slots=True)
class TextsWanted:
    """How many tokens of answers to record, of up to `longest` tokens each, at these temperatures in turn."""

    tokens: int
    longest: int
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """The rows to record for each text: of these layers of the target, or of another model. name: of their folder."""

    name: str
    layers: tuple[int, ...] = ()
    other: Model | None = None


def record_texts(
    session: Session,
    prompts: Mapping[SuitePrompt, Sequence[int]],
    wanted: TextsWanted,
    rows: RowsWanted,
    folder: Path,
    report: Report = lambda *_: None,
) -> list[Path]:
    """Record a file for each answer of the target alone, always in the same order. Existing files are kept, and all
    kinds of rows use the same answers. Raises Interrupted, SpecdecError if the target answers no prompt.
    """
    recorded = folder / rows.name
    recorded.mkdir(parents=True, exist_ok=True)
    paths, done, made, started = list[Path](), 0, 0, perf_counter()
    session.open(max(map(len, prompts.values())))
    with ExitStack() as stack:
        own = session.models.target.model, () if rows.other else rows.layers
        of_target = stack.enter_context(closing(_context(session, *own)))
        of_other = stack.enter_context(closing(_context(session, rows.other, rows.layers))) if rows.other else None
        for number, (prompt, temperature) in enumerate(_in_turn(prompts, wanted)):
            tokens = _answered(session, prompt, temperature, number, wanted, folder / f"{number:06}.npy")
            path = recorded / f"{number:06}.npz"
            if not path.exists():
                _read(tokens, len(prompt), of_target, of_other).save(path)
                made += len(tokens) - len(prompt)
            paths.append(path)
            done += len(tokens) - len(prompt)
            each = (perf_counter() - started) / max(made, 1)
            report(done, wanted.tokens, each * max(0, wanted.tokens - done) if made else 0.0)
            if session.interrupt.is_set():
                raise Interrupted
            if done >= wanted.tokens:
                break
    if not done:
        raise SpecdecError("the target answers none of the prompts", "Use other --prompts.")
    return paths


def _context(session: Session, model: Model, layers: Sequence[int]) -> LlamaContext:
    """A context that reads texts and keeps the rows of these layers."""
    target = session.models.target
    context = LlamaContext.open(model, target.open_kv.n_ctx, _CHUNK, target.threads, session.interrupt)
    if layers:
        context.hidden = HiddenRows(context.passes.handle, model.n_embd, list(layers), _CHUNK)
    return context


def _in_turn(
    prompts: Mapping[SuitePrompt, Sequence[int]], wanted: TextsWanted
) -> Iterator[tuple[Sequence[int], float]]:
    """All prompts at one temperature each, in turn within and across the categories; then each at the next one. Greedy
    answers don't change, so later rounds have only the other temperatures.
    """
    warm = [temperature for temperature in wanted.temperatures if temperature > 0]
    every = [*[0.0] * (len(warm) < len(wanted.temperatures)), *warm]
    categories = len({prompt.category for prompt in prompts})
    rounds = wanted.tokens // len(prompts) + 1 if warm else 0  # each answer has at least one token
    for turn in range(len(every) + rounds):
        chosen = every if turn < len(every) else warm
        for number, tokens in enumerate(prompts.values()):
            yield tokens, chosen[(turn + sum(divmod(number, categories))) % len(chosen)]


def _answered(
    session: Session, prompt: Sequence[int], temperature: float, number: int, wanted: TextsWanted, path: Path
) -> list[int]:
    """The tokens of a prompt and its answer, loaded if they were saved, otherwise generated and saved."""
    if path.exists():
        kept: list[int] = np.load(path).tolist()
        return kept
    sampling = SamplingParams(temperature=temperature, seed=SEED + number, max_tokens=wanted.longest)
    answer = session.start(list(prompt), sampling, reuse=False)
    for _ in answer:
        pass
    if answer.result.finish_reason == "interrupted":
        raise Interrupted
    tokens = [*prompt, *answer.result.tokens]
    with replacing(path) as file:
        np.save(file, np.array(tokens, np.int32))
    return tokens


def _read(tokens: Sequence[int], prompt: int, target: LlamaContext, other: LlamaContext | None) -> RecordedText:
    """Read a text with the target, for logits, and with the other model, if the rows come from one."""
    likeliest, log_p = np.empty((len(tokens), LIKELIEST), np.int32), np.empty((len(tokens), LIKELIEST), np.float16)
    hidden = (other or target).hidden
    rows = np.empty((len(tokens), hidden.width if hidden else 0), np.float16)
    for context in filter(None, (target, other)):
        context.rewind(0)
        for first in range(0, len(tokens), _CHUNK):
            part = slice(first, first + _CHUNK)
            logits = context.decode(tokens[part], all_rows=True)
            if context is target:
                likeliest[part], log_p[part] = _likeliest(logits)
            if context.hidden:
                rows[part] = np.clip(context.hidden.before(first + 1, len(logits)), -65504, 65504)
    return RecordedText(np.array(tokens, np.int32), likeliest, log_p, rows, prompt)


def _likeliest(logits: Logits) -> tuple[np.ndarray, np.ndarray]:
    """The most likely tokens of each row, best first, and their log-probabilities."""
    if logits.shape[1] < LIKELIEST:
        raise SpecdecError(
            f"a vocabulary of {logits.shape[1]} tokens is too small to learn from", "Use another target."
        )
    best = np.argpartition(-logits, LIKELIEST - 1, axis=1)[:, :LIKELIEST]
    values = np.take_along_axis(logits, best, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    top = logits.max(1, keepdims=True)
    norm = top + np.log(np.exp(logits - top).sum(1, keepdims=True, dtype=np.float64))
    return np.take_along_axis(best, order, 1), np.take_along_axis(values, order, 1) - norm
