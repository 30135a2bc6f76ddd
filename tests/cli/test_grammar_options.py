"""`run` with an answer that is bound: options, what is shown of forced tokens, and what is refused before any model."""

import json

import pytest
from driver import PROMPT, assert_refused, run, succeeded, told
from schemas import invalid, thing, whole

SCHEMA = thing({"name": {"enum": ["median", "mean"]}, "count": whole(0, 99)})
BOUND = ("run", PROMPT, "--json-schema", json.dumps(SCHEMA))


def test_a_schema_from_a_file_or_as_text(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    answers = [told(*BOUND), told("run", PROMPT, "--json-schema", tmp_path / "schema.json")]
    assert answers[0]["text"] == answers[1]["text"] and not invalid(answers[0]["text"], SCHEMA)
    assert answers[0]["finish_reason"] == "stop" and answers[0]["stats"]["forced"] > 5
    assert "fulfilled its grammar" in succeeded(*BOUND, "-n", 3).stderr, "an answer that is cut off is no failure"
    assert "fulfilled" not in succeeded("run", PROMPT, "--regex", "a", "-n", 1).stderr, "nothing is missing"


def test_a_grammar_and_a_regular_expression(tmp_path):
    rules = tmp_path / "rules.gbnf"
    rules.write_text('root ::= "a" ("b" | "c")')
    assert told("run", PROMPT, "--grammar", rules)["text"] in ("ab", "ac")
    assert told("run", PROMPT, "--regex", "[0-9]{3}-[0-9]{4}")["text"].replace("-", "").isdecimal()


def test_forced_tokens_are_told_apart_and_recorded(tmp_path):
    trace = tmp_path / "run.jsonl"
    report = succeeded(*BOUND, "-v", "--trace", trace, FORCE_COLOR="1")
    assert "\x1b[3m" in report.stdout, "forced tokens are italic"
    assert "took no pass: the grammar left no other" in report.stderr
    steps = [json.loads(line) for line in trace.read_text().splitlines()[1:]]
    steps = [step for step in steps if step["event"] == "step"]
    origins = [token["origin"] for step in steps for token in step["tokens"]]
    assert "forced" in origins and any(step.get("unread") for step in steps)
    again = succeeded("replay", trace, "--speed", 1000)
    assert json.loads(again.stdout) == json.loads(told(*BOUND)["text"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--json-schema", "{"), "JSON schema"),
        (("--json-schema", "no/such/file"), "No such file"),
        (("--grammar", "."), "directory"),
        (("--regex", "(["), "unclosed"),
        (("--regex", "a", "--json-schema", "{}"), "only one constraint"),
    ],
)
def test_what_cannot_be_used_is_told_before_a_model_is_looked_for(options, says):
    assert_refused(run("-m", "no/such/model.gguf", *options, PROMPT), 2, says)
