"""From a prompt, as a user or a suite gives it, to the tokens that the target reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import chat_template
from specdec_cli.gguf.header import Header
from specdec_cli.llama.model import Model
from specdec_cli.measure import suites
from specdec_cli.pairs import profiles
from specdec_cli.user_files import bundled_dir

if TYPE_CHECKING:
    from specdec_cli.engine.engine import Engine

_MIXTURE = ("code", "chat", "reasoning", "structured", "summarisation", "creative")

Message: TypeAlias = Mapping[str, str]
"""One message of a conversation: {"role": "system", "user" or "assistant", "content": text}."""

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a conversation, or tokens."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """tokens: at least one. notes: what of the request was not used."""

    tokens: list[int]
    notes: tuple[str, ...] = ()


def tokenize(
    prompt: Prompt,
    model: Model,
    header: Header,
    system: str | None = None,
    raw: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> TokenizedPrompt:
    """The prompt's tokens, through the model's chat template if it has one.

    system: the system message of a text prompt. raw: leave the template out. Raises UsageError on messages that a
    model without a template, or `raw`, cannot read, SpecdecError if the template fails or nothing is left to continue,
    Interrupted when `stopped` says so in the middle of the template.
    """
    notes: tuple[str, ...] = ()
    template = not raw and chat_template.template_of(header) is not None
    if not isinstance(prompt, str):
        if all(isinstance(entry, Integral) for entry in prompt):
            return _checked([int(entry) for entry in prompt if isinstance(entry, Integral)], model)
        messages = [_message(entry) for entry in prompt]
        if not template:
            raise UsageError("this prompt is a conversation, which needs a chat template", "Give its text instead.")
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
    if template:
        text, add_bos = render(messages, header, stopped)
        tokens = model.tokenize(text, add_bos=add_bos)
    else:
        notes = ("--system is not used: the prompt goes to the model as it is",) if system else ()
        tokens = model.tokenize(str(prompt))
    return _checked(tokens, model, notes)


def render(messages: Sequence[Message], header: Header, stopped: Callable[[], bool]) -> tuple[str, bool]:
    """A conversation as its template writes it, and whether the BOS token is yet to be added."""
    text = chat_template.render(header, [dict(message) for message in messages], stopped)
    bos = chat_template.special_token(header, "bos")
    return text, not (bos and text.startswith(bos))


def _message(entry: object) -> dict[str, str]:
    if isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in ("role", "content")):
        return {str(key): str(value) for key, value in entry.items()}
    raise UsageError(f"{entry!r:.60} is not a message", 'Write {"role": "user", "content": "..."}.')


def _checked(tokens: list[int], model: Model, notes: tuple[str, ...] = ()) -> TokenizedPrompt:
    if not tokens:
        raise SpecdecError("the prompt has no tokens", "Give a longer one.")
    if not 0 <= min(tokens) <= max(tokens) < model.n_vocab:
        raise UsageError(f"the prompt holds a token outside the vocabulary of {model.n_vocab:,}", "Check its ids.")
    return TokenizedPrompt(tokens, notes)


def choose_prompts(
    target: str | Path,
    texts: Sequence[str] = (),
    suite: str | None = None,
    categories: Sequence[str] = (),
    limit: int | None = None,
    per_category: int | None = None,
) -> list[suites.Prompt]:
    """The prompts to compare on: texts, else those of a suite; by default code, or Python for the bundled pair."""
    if texts and suite:
        raise UsageError("prompts were given and a suite too", "Give prompts, or --prompts.")
    if not all(text.strip() for text in texts):
        raise UsageError("a prompt is empty", 'Give texts: specdec compare "def median(values):"')
    prompts = [suites.Prompt(str(number), "given", text) for number, text in enumerate(texts, 1)]
    prompts = prompts or suites.load(suite or ("python" if _is_bundled(target) else "code"))
    return suites.select(prompts, categories, limit, per_category)


def tuning_prompts(target: str | Path, suite: str | None) -> list[suites.Prompt]:
    """The prompts of a suite; by default a mixture, or Python for the bundled pair."""
    if suite or _is_bundled(target):
        return suites.load(suite or "python")
    return [replace(prompt, category=name) for name in _MIXTURE for prompt in suites.load(name)[:4]]


def fitting(
    engine: Engine, prompts: Iterable[suites.Prompt], most: int, system: str | None, raw: bool
) -> dict[suites.Prompt, list[int]]:
    tokens = {prompt: engine.tokenize(prompt.text, system=system, raw=raw) for prompt in prompts}
    return {prompt: ids for prompt, ids in tokens.items() if len(ids) <= most}


def _is_bundled(target: str | Path) -> bool:
    return Path(target).parent == bundled_dir() / profiles.DEMO
