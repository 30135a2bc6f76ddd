"""The prompts that a draft is trained on, and others that it is measured on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdec_cli.chat import conversations
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.engine.prompt import Prompt
from specdec_cli.engine.session import Session
from specdec_cli.gguf.vocab import Vocabulary
from specdec_cli.measure import suites
from specdec_cli.measure.prompts import tuning_prompts

CONVERSATIONS = "conversations"
"""The name that stands for all conversations that were kept."""
_EVERY = 5
"""One prompt in so many of each category is held out."""


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """By prompt, its tokens. notes: what was left out."""

    train: dict[suites.Prompt, list[int]]
    held_out: dict[suites.Prompt, list[int]]
    notes: tuple[str, ...]


def training_prompts(
    session: Session, prompts: str | None, held_out: str | None, longest: int, raw: bool
) -> TrainingPrompts:
    """The prompts of a suite, a file, or kept conversations; by default the mixture that `tune` takes.

    longest: in tokens; longer ones are left out. Raises UsageError if too few are left.
    """
    usable, notes = _usable(session, _named(session, prompts), longest, raw)
    if held_out is None:
        apart = _one_in(usable)
    else:
        apart, more = _usable(session, _named(session, held_out), longest, raw)
        notes += more
    known = {tuple(tokens) for tokens in apart.values()}
    train = {prompt: tokens for prompt, tokens in usable.items() if tuple(tokens) not in known}
    if not train or not apart:
        what = "there are too few prompts that the target can read: one at least to learn from, and one to measure on"
        raise UsageError(what, f"Give more --prompts, of at most {longest} tokens each, or others with --held-out.")
    return TrainingPrompts(train, apart, notes)


def _named(session: Session, name: str | None) -> list[tuple[suites.Prompt, Prompt]]:
    """Prompts, and what the engine makes tokens of."""
    if name != CONVERSATIONS:
        return [(prompt, prompt.text) for prompt in tuning_prompts(session.pair.target_path, name)]
    turns: list[tuple[suites.Prompt, Prompt]] = []
    for kept in conversations.CONVERSATIONS.names():
        messages = [{"role": each.role, "content": each.content} for each in conversations.load(kept).messages]
        for number, message in enumerate(messages):
            if message["role"] == "user":
                prompt = suites.Prompt(f"{kept}/{number}", kept, message["content"])
                turns.append((prompt, messages[: number + 1]))
    if not turns:
        raise UsageError(
            "no conversations are kept", "Keep one with /save NAME in specdec chat, or give a file of prompts."
        )
    return turns


def _usable(
    session: Session, prompts: Iterable[tuple[suites.Prompt, Prompt]], longest: int, raw: bool
) -> tuple[dict[suites.Prompt, list[int]], tuple[str, ...]]:
    unknown = Vocabulary(session.pair.target).field("unknown_token_id")
    usable: dict[suites.Prompt, list[int]] = {}
    long = foreign = 0
    for prompt, given in prompts:
        try:
            tokens = session.tokenize(given, raw=raw)
        except UsageError:
            raise
        except SpecdecError:  # nothing is left of it
            continue
        long += len(tokens) > longest
        foreign += unknown in tokens
        if len(tokens) <= longest and unknown not in tokens:
            usable[prompt] = tokens
    if foreign and not usable:
        what = "the target's tokenizer cannot write the prompts: they hold what it has no tokens for"
        raise UsageError(what, "Give prompts in a language that the target knows.")
    notes = [f"prompts left out for their length, over {longest} tokens: {long:,}"] if long else []
    if foreign:
        notes.append(f"prompts left out that the tokenizer cannot write: {foreign:,}")
    return usable, tuple(notes)


def _one_in(prompts: dict[suites.Prompt, list[int]]) -> dict[suites.Prompt, list[int]]:
    by_category: defaultdict[str, list[suites.Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    chosen: Sequence[suites.Prompt] = [prompt for each in by_category.values() for prompt in each[::_EVERY]]
    return {prompt: prompts[prompt] for prompt in chosen}
