"""What a constraint costs beside the model: microseconds a token for masks, forced tokens and masked rows.

python benchmarks/mask_cost.py --target M.gguf

It follows JSON of growing length without decoding anything; a vocabulary of 150,000 tokens is the hard case.
"""

from __future__ import annotations

import argparse
import json
import statistics
from time import perf_counter

import numpy as np
from common import machine

from specdec_cli import Grammar, SpeculativeConfig, load
from specdec_cli.constraints.grammar_state import GrammarState
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler

_ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": _ITEM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--items", type=int, default=120, help="of the list that is followed")
    args = parser.parse_args()
    print(machine())
    text = json.dumps([{"name": f"item number {i}", "size": 17 * i} for i in range(args.items)])
    with load(target=args.target, speculative=SpeculativeConfig(drafter="none")) as session:
        model = session.models.target.model
        begun = perf_counter()
        state = GrammarState(model, Grammar.json_schema(SCHEMA))
        print(f"{model.n_vocab:,} tokens, ready after {perf_counter() - begun:.2f} s, once for a model")
        sampler = StandardSampler(SamplingSettings(temperature=0.0), constraint=state)
        row = np.random.default_rng(0).normal(size=model.n_vocab).astype(np.float32)
        context: list[int] = []
        sampler.watch(context)
        costs = []
        for token in model.tokenize(text, add_bos=False, special=False):
            begun = perf_counter()
            forced = state.forced()
            if forced is None:
                sampler.argmax(row)
            costs.append(1e6 * (perf_counter() - begun))
            assert state.allowed([token]), "the text is what the schema asks for"
            context.append(token)
    quarter = len(costs) // 4
    for name, part in (("all", costs), ("first quarter", costs[:quarter]), ("last quarter", costs[-quarter:])):
        print(f"{name}: median {statistics.median(part):.0f} us a token, mean {statistics.mean(part):.0f}")


if __name__ == "__main__":
    main()
