"""Answers of the bundled pair that are bound to a grammar: valid, and those of the target alone, whatever drafts."""

import pytest
from engines import loaded, open_session
from schemas import invalid, schemas

from specdec_cli import Draft, Grammar, SamplingParams, SpeculativeConfig


class Repeating:
    """A program's own drafter, which ignores the grammar."""

    def propose(self, context, budget, policy):
        return Draft(context[-2:][:budget])


SCHEMAS = schemas()
EVERY = 48
DRAFTERS = ["grammar", "ngram", "model", "lookahead", "grammar+ngram+model", "model<ngram", Repeating()]


@pytest.fixture(scope="module")
def session():
    with open_session(drafter="model", threads=1) as session:
        yield session


def answered(session, schema, drafter, temperature, **how):
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=160, grammar=Grammar.json_schema(schema))
    return session.generate("# as JSON:\n", sampling, SpeculativeConfig(drafter=drafter, **how), raw=True)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * bool(i % EVERY)) for i, name in enumerate(SCHEMAS)]
)
def test_they_are_valid_and_the_targets_own(session, name):
    for temperature in (0, 0.8):
        own = answered(session, SCHEMAS[name], "none", temperature)
        assert own.finish_reason != "stop" or not invalid(own.text, SCHEMAS[name])
        for drafter in DRAFTERS:
            assert answered(session, SCHEMAS[name], drafter, temperature).tokens == own.tokens, drafter


@pytest.mark.parametrize(
    ("drafter", "how"),
    [
        ("model", {"tree": 3, "draft_tokens": 6}),
        ("model", {"accept": "match"}),
        ("grammar+ngram+model", {"bitwise": True, "draft_tokens": 4}),
    ],
)
def test_trees_other_rules_and_bitwise(session, drafter, how):
    kept = {name: how[name] for name in ("accept", "bitwise") if name in how}
    for temperature in (0, 0.8):
        own = answered(session, SCHEMAS["API 4"], "none", temperature, **kept)
        assert answered(session, SCHEMAS["API 4"], drafter, temperature, **how).tokens == own.tokens


def test_the_baseline_is_bound_too(session):
    sampling = SamplingParams(max_tokens=60, grammar=Grammar.json_schema(SCHEMAS["API 8"]))
    answer = session.start("# as JSON:\n", sampling, SpeculativeConfig(draft_tokens=3), raw=True, reuse=False)
    list(answer)
    answer.measure_baseline()
    assert answer.result.baseline.identical
    assert answer.result.metrics.forced > 10


@pytest.mark.parametrize("kind", ["lfm2", "nemotron_h", "qwen35"])
def test_models_that_cannot_forget(kind, load):
    """Forced tokens and drafts in one pass, on memories that go back by snapshots."""
    grammar = Grammar.json_schema(SCHEMAS["API 8"])
    with loaded(target=load(kind).path, draft=load(kind, 0.05).path, threads=1) as session:
        for temperature in (0, 0.8):
            sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=60, grammar=grammar)
            texts = [
                session.generate("hello", sampling, SpeculativeConfig(drafter=drafter, draft_tokens=3)).tokens
                for drafter in ("none", "model", "ngram", "grammar+model")
            ]
            assert all(text == texts[0] for text in texts)
