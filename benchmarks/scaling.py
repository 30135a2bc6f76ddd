"""What speculation brings as more answers share the passes, by a roofline: the table of docs/scaling.md.

    python benchmarks/scaling.py

A pass takes what its bytes or its arithmetic take, whichever is longer, and something beside. All answers are in step:
with a batch of b, a step verifies b (k + 1) rows, after k passes of the draft model over b rows. What stands comes from
a recording; the length is the best fixed one for the batch, as an engine would have to be told. Assumptions are the
constants below; nothing here was measured on such a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.measure import acceptance_traces
from specdec_cli.measure.static_setting import StaticPolicy, best_static
from specdec_cli.user_files import bundled_dir

BATCHES = (1, 8, 64, 256)
BANDWIDTH, ARITHMETIC = 0.8, 0.6
"""Shares of the peaks that a pass reaches."""
CONTEXT = 2048
"""Tokens of each answer in the cache."""
PASS_S, LINK_S = 0.2e-3, 10e-6
"""Beside the work: of a pass, and for each of the two exchanges of a layer between several cards."""
PAIR = "qwen2.5-coder"
VLLM = StaticPolicy((0.0,), rereads=False, rule="rejection")


@dataclass(frozen=True, slots=True)
class Card:
    """bandwidth: bytes a second. arithmetic: FLOP a second, dense, of 16-bit numbers. Both are the maker's peaks.
    memory: bytes.
    """

    name: str
    bandwidth: float
    arithmetic: float
    memory: float


@dataclass(frozen=True, slots=True)
class Weights:
    """parameters: those that a token meets; cache: bytes of a token's keys and values. Two bytes a parameter."""

    name: str
    parameters: float
    layers: int
    cache: int

    def taken(self, answers: int) -> float:
        """Bytes of memory."""
        return 2 * self.parameters + answers * CONTEXT * self.cache

    def pass_s(self, rows: int, answers: int, card: Card, cards: int) -> float:
        """Seconds of a pass over so many rows of so many answers."""
        read = self.taken(answers) / (cards * card.bandwidth * BANDWIDTH)
        computed = 2 * self.parameters * rows / (cards * card.arithmetic * ARITHMETIC)
        return max(read, computed) + PASS_S + (2 * self.layers * LINK_S if cards > 1 else 0.0)


RTX_4090, H200 = Card("RTX 4090", 1.008e12, 165e12, 24e9), Card("H200", 4.8e12, 989e12, 141e9)
LLAMA_8B, LLAMA_70B = Weights("8B", 8.0e9, 32, 131072), Weights("70B", 70.6e9, 80, 327680)
QWEN_32B = Weights("32B", 32.8e9, 64, 262144)
SMALL, ONE_B = Weights("0.5B", 0.5e9, 24, 12288), Weights("1B", 1.2e9, 16, 32768)
SETUPS = (
    (LLAMA_8B, ONE_B, RTX_4090, 1),
    (LLAMA_8B, ONE_B, H200, 1),
    (QWEN_32B, SMALL, H200, 1),
    (LLAMA_70B, ONE_B, H200, 4),
)


def costs_of(target: Weights, draft: Weights, card: Card, cards: int, batch: int) -> Costs:
    """What a step of one answer costs where so many are in step: the draft model lies on one card."""
    verify = {n: target.pass_s(batch * n, batch, card, cards) for n in range(1, LONGEST + 2)}
    reading = {n: draft.pass_s(batch * n, batch, card, 1) for n in (1, 2, 4, 8, LONGEST + 1)}
    return Costs(Curve(verify), Curve(reading))


def main() -> None:
    recording = acceptance_traces.read(bundled_dir() / "recordings" / PAIR / "greedy.json.gz")
    by_kind = acceptance_traces.by_category(recording.answers)
    kinds = {"code": by_kind["code"], "chat": by_kind["chat"], "all": recording.answers}
    print(f"| pair, cards | text | {' | '.join(f'batch {batch}' for batch in BATCHES)} |")
    print("|---" * (2 + len(BATCHES)) + "|")
    for target, draft, card, cards in SETUPS:
        for kind, answers in kinds.items():
            cells = []
            for batch in BATCHES:
                if target.taken(batch) + draft.taken(batch) > cards * card.memory:
                    cells.append("does not fit")
                    continue
                best = best_static(answers, costs_of(target, draft, card, cards, batch), recording.greedy, VLLM)
                cells.append(f"{best.speedup:.2f} (k = {best.tokens})")
            print(f"| {target.name} + {draft.name}, {cards} x {card.name} | {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
