"""Answers of the bundled pair that are bound to a grammar: valid, and those of the target alone, whatever drafts."""

import pytest
import tiny
from engines import loaded, open_session
from schemas import invalid, schemas

from specdec_cli import Draft, Grammar, SamplingParams, SpeculativeConfig


class Repeating:
    """A program's own drafter, which ignores the grammar."""

    def propose(self, context, budget, policy):
        return Draft(context[-2:][:budget])


SCHEMAS = schemas()
EVERY = 24
DRAFTERS = ["grammar", "ngram", "model", "lookahead", "grammar+ngram+model", "model<ngram", Repeating()]


@pytest.fixture(scope="module")
def session():
    with open_session(drafter="model", threads=1) as session:
        yield session


def answered(session, schema, drafter, temperature, **how):
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=160, grammar=Grammar.json_schema(schema))
    return session.generate("# as JSON:\n", sampling, SpeculativeConfig(drafter=drafter, **how), raw=True)


@pytest.mark.parametrize("name", [*SCHEMAS][::EVERY])
def test_they_are_valid_and_the_targets_own(session, name):
    for temperature in (0, 0.8):
        own = answered(session, SCHEMAS[name], "none", temperature)
        assert own.finish_reason != "stop" or not invalid(own.text, SCHEMAS[name])
        for drafter in DRAFTERS:
            assert answered(session, SCHEMAS[name], drafter, temperature).tokens == own.tokens, drafter


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for i, name in enumerate(SCHEMAS) if i % EVERY])
def test_all_are_valid_and_the_targets_own(session, name):
    test_they_are_valid_and_the_targets_own(session, name)


@pytest.mark.parametrize("how", [{"tree": 3, "draft_tokens": 6}, {"accept": "match"}])
def test_trees_and_other_rules(session, how):
    schema = SCHEMAS["API 4"]
    for temperature in (0, 0.8):
        own = answered(session, schema, "none", temperature, accept=how.get("accept"))
        assert answered(session, schema, "model", temperature, **how).tokens == own.tokens


def test_the_baseline_is_bound_too(session):
    sampling = SamplingParams(max_tokens=60, grammar=Grammar.json_schema(SCHEMAS["API 8"]))
    answer = session.start("# as JSON:\n", sampling, SpeculativeConfig(draft_tokens=3), raw=True, reuse=False)
    for _ in answer:
        pass
    answer.measure_baseline()
    assert answer.result.baseline.identical
    assert answer.result.metrics.forced > 10


@pytest.mark.parametrize("kind", ["lfm2", "nemotron_h", "qwen35"])
def test_models_that_cannot_forget(kind, tmp_path):
    """Forced tokens and drafts in one pass, on memories that go back by snapshots."""
    target, draft = (
        tiny.write(tmp_path / f"{name}.gguf", kind, noise=noise) for name, noise in (("t", 0), ("d", 0.05))
    )
    grammar = Grammar.json_schema(SCHEMAS["API 8"])
    with loaded(target=target, draft=draft, threads=1) as session:
        for temperature in (0, 0.8):
            sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=60, grammar=grammar)
            texts = [
                session.generate("hello", sampling, SpeculativeConfig(drafter=drafter, draft_tokens=3)).tokens
                for drafter in ("none", "model", "ngram", "grammar+model")
            ]
            assert all(text == texts[0] for text in texts)


def test_bitwise(session):
    schema = SCHEMAS["API 8"]
    own = answered(session, schema, "none", 0, bitwise=True)
    assert answered(session, schema, "grammar+ngram+model", 0, bitwise=True, draft_tokens=4).tokens == own.tokens
