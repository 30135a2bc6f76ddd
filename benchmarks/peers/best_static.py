"""specdec, which finds its draft length itself, against llama-speculative-simple at its own best static setting.

    benchmarks/peers/build_llama_cpp.sh FOLDER
    python benchmarks/peers/best_static.py FOLDER/build/bin/llama-speculative-simple [--out FILE.json]

For each category of the suite and each temperature:

1. Sweep: every n_max from 1 to 16 with every p_min, on two prompts; the second round goes the other way, so
   that a drift of the machine cancels. n_max stops rising where three values in a row, and 16 too, are over
   15 % slower than the best of that p_min.
2. Finals: the best three settings on all prompts, interleaved. The best has the highest median of tokens/s.
3. Match: that setting, specdec and specdec's target alone, interleaved per prompt in alternating order. Ratios
   are taken within a round of a prompt; a prompt counts with the median of its rounds.

Speeds are each tool's own, of decoding alone. Sampled answers differ between the tools, so it is tokens/s that
are compared, never seconds, and what has an answer under 16 tokens is left out. The peer's best is chosen with
the very prompts and seeds of the match, which favours the peer.
--peer-flags='-td 1' adds flags to its command; --draft-tokens sets specdec's draft length instead of auto.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import open_demo
from peers import (
    Answer,
    SpeculativeSimple,
    Static,
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
from static_sweep import Speeds, finals, sweep

from specdec_cli.engine.session import Session

SWEPT = 2
"""Prompts of each category that the sweep uses."""
FINALISTS = 3
MATCH = ("peer", "specdec", "alone")


@dataclass(frozen=True, slots=True)
class Trial:
    """One round of one prompt in the match: an answer of each, in the order of MATCH."""

    prompt: str
    answers: dict[str, Answer]

    @property
    def counts(self) -> bool:
        return all(answer.counts for answer in self.answers.values())


def match(peer: SpeculativeSimple, static: Static, session: Session, tasks: Sequence[Task], rounds: int) -> list[Trial]:
    """The third stage: the peer at its best, specdec, and specdec's target alone."""
    trials = []
    for i, task, order in interleaved(tasks, MATCH, rounds):
        answers = {}
        for name in order:
            if name == "peer":
                answers[name] = peer.answer(task, static, i + 1)
            else:
                settings = peer.settings if name == "specdec" else peer.settings.alone()
                answers[name] = specdec(session, task, settings, i + 1)
        trials.append(Trial(task.id, answers))
    return trials


@dataclass(frozen=True, slots=True)
class Result:
    """A category at a temperature."""

    category: str
    swept: Speeds
    final: Speeds
    trials: list[Trial]

    @property
    def counted(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.counts]

    def speed(self, name: str) -> float:
        return statistics.median(by_prompt((trial.prompt, trial.answers[name].tokens_per_s) for trial in self.counted))

    def ratios(self, name: str, to: str) -> list[float]:
        """One a prompt."""
        return by_prompt(
            (trial.prompt, trial.answers[name].tokens_per_s / trial.answers[to].tokens_per_s) for trial in self.counted
        )

    def ratio(self, name: str, to: str) -> float:
        return statistics.median(self.ratios(name, to))

    def to_json(self) -> dict[str, object]:
        trials = [
            {"prompt": trial.prompt, **{name: answer.to_json() for name, answer in trial.answers.items()}}
            for trial in self.trials
        ]
        stages = {"sweep": self.swept.to_json(), "finals": self.final.to_json(), "match": trials}
        return {"category": self.category, **stages}


def measure(category: str, tasks: Sequence[Task], peer: SpeculativeSimple, session: Session, rounds: int) -> Result:
    """The three stages for one category."""
    swept = sweep(peer, tasks[:SWEPT], rounds)
    final = finals(peer, tasks, swept.ranked()[:FINALISTS], rounds)
    progress("  finals: " + "; ".join(f"{static}: {final.of(static):,.0f} tokens/s" for static in final.ranked()))
    return Result(category, swept, final, match(peer, final.ranked()[0], session, tasks, rounds))


def table(temp: float, results: Sequence[Result]) -> str:
    """What the match at one temperature came to, as Markdown."""
    pairs = (("specdec", "peer"), ("specdec", "alone"), ("peer", "alone"))
    lines = [
        f"**temperature {temp:g}**, tokens/s, ratios with quartiles over prompts\n",
        head(
            *("category", "prompts", "the peer's best", "peer", "specdec", "target alone"),
            *("specdec / peer", "specdec / alone", "peer / alone"),
        ),
    ]
    for result in results:
        speeds = [result.speed(name) for name in MATCH]
        cells = [spread(result.ratios(*pair)) for pair in pairs]
        prompts = len({trial.prompt for trial in result.counted})
        lines.append(row(result.category, prompts, result.final.ranked()[0], *speeds, *cells))
    means = [statistics.geometric_mean([result.ratio(*pair) for result in results]) for pair in pairs]
    lines.append(row("geometric mean", *[""] * 5, *(f"{mean:.2f}" for mean in means)))
    for against, what in (("alone", "its own target alone"), ("peer", "the peer's best")):
        worst = min(results, key=lambda result: result.ratio("specdec", against))
        lines.append(f"\nWorst against {what}: {worst.category}, {worst.ratio('specdec', against):.2f}.")
    left_out = sum(len(result.trials) - len(result.counted) for result in results)
    return "\n".join([*lines, f"\nLeft out for an answer under 16 tokens: {left_out} rounds of a prompt.\n"])


def main() -> None:
    made = parser(__doc__)
    made.add_argument("binary", help="llama-speculative-simple")
    made.add_argument("--temp", type=float, nargs="+", default=[0.0, 0.8])
    made.add_argument("--peer-flags", type=shlex.split, default=[], metavar="'FLAGS'")
    options = made.parse_args()
    print(heading(options))
    measured = []
    with open_demo(
        target=options.target,
        draft=options.draft,
        draft_tokens=options.draft_tokens,
        threads=options.threads,
        max_tokens=options.tokens,
    ) as session:
        tasks = tasks_of(options, session)
        for temp in options.temp:
            peer = SpeculativeSimple(options.binary, replace(session.settings, temp=temp), tuple(options.peer_flags))
            results = []
            for category, its in tasks.items():
                progress(f"temperature {temp:g}, {category}: {len(its)} prompts")
                result = measure(category, its, peer, session, options.repeat)
                measured.append({"temp": temp, **result.to_json()})
                if result.counted:
                    results.append(result)
            print(table(temp, results) if results else "no answer was long enough", flush=True)
    write(options, {"results": measured})


if __name__ == "__main__":
    main()
