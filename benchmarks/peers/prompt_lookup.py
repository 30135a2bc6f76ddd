"""specdec against llama-cpp-python's own speculation, LlamaPromptLookupDecoding, on the bundled target.

    python benchmarks/peers/prompt_lookup.py [--repeat N] [--out FILE.json]

Five arms, interleaved per prompt in alternating order: llama-cpp-python's `Llama.generate` with the target alone
and with prompt lookup of 2 and 10 tokens (its documentation's numbers for a CPU and a GPU); specdec's target alone
and specdec. Greedy, 128 tokens, context 1024, all with flash attention, which llama-cpp-python has off by itself.
Speeds are of decoding alone, from the first token to the last. Ratios are taken within a round of a prompt; a
prompt counts with the median of its rounds. An answer under 16 tokens is left out of the speeds, not of the texts.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import open_demo
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from peers import (
    Answer,
    Task,
    by_prompt,
    head,
    heading,
    interleaved,
    parser,
    progress,
    row,
    specdec,
    spread,
    tasks_of,
    write,
)

from specdec_cli.engine.config import Settings
from specdec_cli.engine.session import Session

LIBRARY, OURS = "llama-cpp-python alone", "specdec's target alone"
LOOKUPS = {"prompt lookup of 2": 2, "prompt lookup of 10": 10}
ALONE = {LIBRARY: LIBRARY, **dict.fromkeys(LOOKUPS, LIBRARY), OURS: OURS, "specdec": OURS}
"""The arms, each with the one that is its own target alone."""

Round = tuple[Task, dict[str, Answer]]


def load(settings: Settings, lookup: int | None) -> Llama:
    """The target in llama-cpp-python, which reads the logits of all tokens to check drafts."""
    return Llama(
        settings.target,
        n_ctx=settings.ctx,
        n_threads=settings.threads,
        n_threads_batch=settings.threads,
        logits_all=lookup is not None,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None,
        flash_attn=True,
        verbose=False,
    )


def generate(llama: Llama, session: Session, task: Task) -> Answer:
    """A greedy answer of llama-cpp-python."""
    llama.reset()
    ids: list[int] = []
    first = last = 0.0
    for token in llama.generate(task.tokens, temp=0.0):
        last = perf_counter()
        first = first or last
        ids.append(token)
        if session.models.target.model.is_end(token) or len(ids) >= session.settings.max_tokens:
            break
    return Answer(len(ids), (len(ids) - 1) / (last - first) if len(ids) > 1 else 0.0, ids=tuple(ids))


def speeds(rounds: Sequence[Round], arm: str, to: str | None = None) -> list[float]:
    """Tokens per second of an arm, or its ratio to another: one a prompt."""
    return by_prompt(
        (task.id, answers[arm].tokens_per_s / (answers[to].tokens_per_s if to else 1.0))
        for task, answers in rounds
        if all(answer.counts for answer in answers.values())
    )


def same_text(rounds: Sequence[Round], arm: str, to: str) -> str:
    """How many answers are those of another arm, as a table's cell."""
    same = sum(answers[arm].ids == answers[to].ids for _, answers in rounds)
    return f"{same} of {len(rounds)}"


def tables(rounds: Sequence[Round]) -> str:
    """All prompts together, then every category, as Markdown."""
    lines = [
        "Ratios with quartiles over prompts; texts compared with those of the arm's own target alone.\n",
        head("arm", "tokens/s", "against its own target alone", "specdec against it", "the target's own text"),
    ]
    for arm, alone in ALONE.items():
        pairs = ((arm, alone), ("specdec", arm))
        ratios = ["" if one == other else spread(speeds(rounds, one, other)) for one, other in pairs]
        same = "" if arm == alone else same_text(rounds, arm, alone)
        lines.append(row(arm, statistics.median(speeds(rounds, arm)), *ratios, same))
    lines.append(f"\nThe two targets alone write the same text: {same_text(rounds, LIBRARY, OURS)}.\n")
    shown = (*LOOKUPS, "specdec")
    lines.append(head("against its own target alone", *shown, *(f"specdec against {arm}" for arm in LOOKUPS)))
    for category in dict.fromkeys(task.category for task, _ in rounds):
        its = [one for one in rounds if one[0].category == category]
        pairs = [(arm, ALONE[arm]) for arm in shown] + [("specdec", arm) for arm in LOOKUPS]
        lines.append(row(category, *(spread(found) if (found := speeds(its, *pair)) else "" for pair in pairs)))
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__).parse_args()
    print(heading(options))
    rounds: list[Round] = []
    with ExitStack() as stack:
        session = stack.enter_context(
            open_demo(
                target=options.target,
                draft=options.draft,
                draft_tokens=options.draft_tokens,
                threads=options.threads,
                max_tokens=options.tokens,
            )
        )
        settings = session.settings
        arms: dict[str, Callable[[Task], Answer]] = {
            OURS: lambda task: specdec(session, task, settings.alone()),
            "specdec": lambda task: specdec(session, task),
        }
        for arm, lookup in {LIBRARY: None, **LOOKUPS}.items():
            llama = load(settings, lookup)
            stack.callback(llama.close)
            arms[arm] = partial(generate, llama, session)
        for category, tasks in tasks_of(options, session).items():
            progress(category)
            for _, task, order in interleaved(tasks, list(ALONE), options.repeat):
                rounds.append((task, {arm: arms[arm](task) for arm in order}))
    print(tables(rounds))
    found = [
        {"prompt": task.id, "category": task.category, **{arm: answers[arm].to_json() for arm in ALONE}}
        for task, answers in rounds
    ]
    write(options, {"results": found})


if __name__ == "__main__":
    main()
