"""What cannot be used is told at once, in a line and with what to do."""

import resource
import time

import pytest

from specdec_cli import Grammar
from specdec_cli.decoding.errors import UsageError

OBJECT = '{"type": "object", "properties": {"a": {"$ref": "#/nope"}}}'


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Grammar.json_schema('{"type":'), "JSON schema"),
        (Grammar.json_schema("[1, 2]"), "not a JSON object"),
        (Grammar.json_schema("false"), "no text matches it"),
        (Grammar.json_schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}), "no text"),
        (
            Grammar.json_schema(
                {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
            ),
            "no",
        ),
        (
            Grammar.json_schema(
                {"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}, "minItems": 1}}, "$ref": "#/$defs/l"}
            ),
            "no",
        ),
        (Grammar.json_schema({"type": "strnig"}), "strnig"),
        (Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5)"),
        (Grammar.json_schema({"type": "array", "minItems": 5, "maxItems": 2}), "minItems (5)"),
        (Grammar.json_schema({"enum": []}), "nsatisfiable"),
        (Grammar.json_schema({"not": {"type": "string"}}), '"not"'),
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema(OBJECT), "/nope"),
        (Grammar.json_schema({"$ref": "http://127.0.0.1:9/schema"}), "schema"),
        (Grammar.json_schema({"type": "string", "pattern": "(["}), "unclosed"),
        (Grammar.json_schema({"type": "string", "format": "nope"}), "format"),
        (Grammar.rules(""), "grammar"),
        (Grammar.rules("hello world"), "grammar"),
        (Grammar.rules("root ::= other"), "other"),
        (Grammar.rules('other ::= "a"'), "root"),
        (Grammar.rules('root ::= root "a"'), "no text matches it"),
        (Grammar.rules("start: ("), "grammar"),
        (Grammar.regex("(["), "unclosed"),
        (Grammar.regex("(?=a)b"), "look-around"),
        (Grammar.regex(r"(a)\1"), "backreferences"),
        (Grammar.regex(r"[^\s\S]"), "no text matches it"),
    ],
    ids=lambda value: value.text[:30] if isinstance(value, Grammar) else "",
)
def test_what_cannot_be_used(grammar, says):
    began = time.process_time()
    with pytest.raises(UsageError) as told:
        grammar.compiled()
    assert says in str(told.value) and "\n" not in str(told.value) and told.value.hint
    assert time.process_time() - began < 2


@pytest.mark.parametrize("text", ["(a{1,1000}){1,1000}", "(((a{1,100}){1,100}){1,100}){1,100}", "(a|b)*a(a|b){200}"])
def test_a_regular_expression_that_would_explode_takes_little_time_and_memory(text):
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    Grammar.regex(text).compiled()
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_schema({}),
        Grammar.json_schema("true"),
        Grammar.json_schema({"type": "array", "items": {"$ref": "#"}}),
        Grammar.json_schema({"type": ["null", "object"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        Grammar.json_schema({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]}),
        Grammar.rules('root ::= "a" root | "b"'),
        Grammar.rules('root ::= root "a" | "b"'),
        Grammar.rules('start: "a" | B\nB: /[0-9]+/'),
        Grammar.regex(""),
    ],
    ids=lambda value: value.text[:30],
)
def test_what_can_be_used(grammar):
    assert grammar.compiled()
