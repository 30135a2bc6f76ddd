"""Answers of a real model that are bound to schemas: valid, its own but for proved rounding, and in fewer passes."""

import pytest
from engines import loaded
from schemas import invalid, schemas

from specdec_cli import Grammar, SamplingParams, SpeculativeConfig

SCHEMAS = schemas()
NAMES = ["API 0", "API 4", "API 7", "pattern 5", "recursive 0", "union 7", "list of objects 20", "nested 12"]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_they_are_valid_and_the_targets_own(smol, temperature):
    emitted = passes = 0
    with loaded(target=smol, threads=2) as session:
        for name in NAMES:
            grammar = Grammar.json_schema(SCHEMAS[name])
            sampling = SamplingParams(temperature=temperature, seed=5, max_tokens=200, grammar=grammar)
            for drafter in (None, "grammar", "ngram"):
                speculative = SpeculativeConfig(drafter=drafter)
                answer = session.start(f"Write an example as JSON: {name}", sampling, speculative, reuse=False)
                for _ in answer:
                    pass
                found = answer.result
                assert found.finish_reason != "stop" or not invalid(found.text, SCHEMAS[name]), found.text
                answer.measure_baseline()
                assert found.baseline.identical or found.baseline.divergence.kind == "rounding", name
                emitted, passes = emitted + found.metrics.emitted, passes + found.metrics.steps + 1
    assert emitted / passes > 1.3
