"""What can't be used, or takes too much time or memory, is refused in a line that says why."""

import itertools
import pickle
import resource
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from specdec_cli import Grammar
from specdec_cli.constraints import grammar as grammar_module
from specdec_cli.constraints.finite_schema import has_finite_value
from specdec_cli.constraints.grammar import MAX, QUICK, GrammarTooLarge
from specdec_cli.decoding.errors import Interrupted, UsageError


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Grammar.json_schema('{"type":'), "JSON schema"),
        (Grammar.json_schema("[1, 2]"), "not a JSON object"),
        (Grammar.json_schema("false"), "no text matches it"),
        (Grammar.json_schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}), "no text"),
        (Grammar.json_schema({"type": "strnig"}), "strnig"),
        (Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5)"),
        (Grammar.json_schema({"enum": []}), "nsatisfiable"),
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema({"type": "object", "properties": {"a": {"$ref": "#/nope"}}}), "/nope"),
        (Grammar.json_schema({"type": "object", "required": ["a"], "minProperties": 3}), "minProperties"),
        (Grammar.json_schema({"const": 1234567890123456789}), "1234567890123456789"),
        (Grammar.json_schema('{"maximum": 1e400}'), "1e400"),
        (Grammar.json_schema({"oneOf": [{"type": 5}, {"enum": 5}]}), "type must be"),
        (Grammar.json_schema({"oneOf": [{"$ref": "#/$defs/a"}, {}], "$defs": {"a": {"minimum": 1}}}), "no such limit"),
        (Grammar.json_schema({"$ref": "http://127.0.0.1:9/schema"}), "schema"),
        (Grammar.rules(""), "grammar"),
        (Grammar.rules('other ::= "a"'), "root"),
        (Grammar.rules('root ::= root "a"'), "no text matches it"),
        (Grammar.rules("start: ("), "grammar"),
        (Grammar.rules('root ::= "a"\nb ::= "\\q"'), "line 2"),
        (Grammar.rules("root ::= other"), "no rule 'other'"),
        (Grammar.regex("(["), "unclosed"),
        (Grammar.regex("(?=a)b"), "look-around"),
        (Grammar.regex(r"[^\s\S]"), "no text matches it"),
    ],
    ids=lambda value: value.text[:30] if isinstance(value, Grammar) else "",
)
def test_what_cannot_be_used(grammar, says):
    with pytest.raises(UsageError) as told:
        grammar.compiled()
    assert says in str(told.value) and "\n" not in str(told.value) and told.value.hint
    assert not isinstance(told.value, GrammarTooLarge)


@pytest.mark.parametrize("text", ["(a{1,1000}){1,1000}", "(((a{1,100}){1,100}){1,100}){1,100}", "(a|b)*a(a|b){200}"])
def test_a_regular_expression_that_would_explode_takes_little_time_and_memory(text):
    assert Grammar.regex(text).compiled(replace(MAX, cpu_s=0.5))


def chain(length, link):
    """Definitions, each made by `link` of a reference to the next; the last is a constant."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": {"const": "yes"}}}


def both(part):
    return {"type": "object", "properties": {"a": part, "b": part}, "required": ["a", "b"]}


ENDLESS = [
    Grammar.json_schema({"type": "integer", "multipleOf": 9999991}),
    Grammar.json_schema(chain(24, lambda part: {"allOf": [part, part]})),
    Grammar.json_schema(chain(5000, lambda part: part)),  # overflows the stack of llguidance
    Grammar.json_schema({"const": "x" * 9_000_000}),
    Grammar.json_schema({"enum": [f"word {i}" for i in range(100_000)]}),
]


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.parametrize("grammar", ENDLESS, ids=lambda value: value.text[:40])
def test_what_takes_too_much_time_or_memory_costs_this_process_nothing(grammar):
    before, began = resident(), time.process_time()
    with pytest.raises(UsageError) as told:
        grammar.compiled()
    assert told.value.hint and len(str(told.value)) < 300
    assert time.process_time() - began < 1
    assert resident() - before < 100 << 20
    assert Grammar.json_schema({"type": "null", "title": grammar.text[:40]}).compiled()  # in a new child


def test_references_may_meet_again():
    """Each of 24 definitions requires the next twice, which makes 16 million paths."""
    assert Grammar.json_schema(chain(24, both)).compiled()


def test_a_child_that_was_stopped():
    with pytest.raises(Interrupted):
        ENDLESS[0].compiled(stopped=lambda: True)
    assert Grammar.json_schema({"title": "after"}).compiled()


def test_a_grammar_that_takes_much_is_refused_where_little_is_allowed(monkeypatch):
    monkeypatch.setattr(grammar_module, "_compiled", OrderedDict())
    quick, slow = (Grammar.json_schema({"type": "integer", "multipleOf": n}) for n in (2, 100003))
    assert quick.compiled(QUICK) == quick.compiled() and pickle.loads(pickle.dumps(slow)) == slow
    for _ in range(2):  # the second time it's known
        with pytest.raises(GrammarTooLarge):
            slow.compiled(QUICK)
        assert slow.compiled(replace(MAX, cpu_s=20.0, nice=0))


def test_kept_grammars_are_counted_in_characters():
    for i in range(12):
        Grammar.json_schema({"type": "null", "title": f"{i:02}" * 125_000}).compiled()
    kept = [len(each.text) + len(known.text) for each, known in grammar_module._compiled.items()]
    assert 1 < len(kept) < 64 and sum(kept) <= grammar_module._MAX_KEPT


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_schema("true"),
        Grammar.json_schema({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, {"type": "null"}]}),
        Grammar.rules('root ::= root "a" | "b"'),
        Grammar.rules('start: "a" | B\nB: /[0-9]+/'),
        Grammar.regex(""),
    ],
    ids=lambda value: value.text[:30],
)
def test_what_can_be_used(grammar):
    assert grammar.compiled()


def matches(grammar, text):
    matcher = LLMatcher(LLTokenizer("byte"), grammar.compiled(), log_level=0)
    return matcher.try_consume_tokens([*text.encode()]) == len(text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("rules", "fits", "differs"),
    [
        ('root ::= word "ing"\nword ::= [a-z]+', ("sing", "inging"), ("ing", "sin")),
        ('root ::= a "bc"\na ::= "a" "b"?', ("abc", "abbc"), ("ab",)),
        ('root ::= (x | y)* "!"\nx ::= [ab]+ "c"\ny ::= "b"+ "d"', ("bbdac!", "bc!"), ("ad!",)),
        ('root ::= ["] ([^"\\\\] | "\\\\" ["u] [0-9a-f]{2})* ["]', ('"a\\"0fb"', '""'), ('"\\"', '"\\u0"')),
        ('root ::= [a-z]{2,3} "-" ("" | [0-9]{0}) [a-z]{2}', ("ab-cd", "abc-de"), ("a-bc", "abcd-ef", "ab-cde")),
        (r'root ::= "F\u00e9d" [\u00C0-\u017F] [+--] .', ("F\u00e9d\u00e9,\n", "F\u00e9d\u0101-a"), ("\ue9de+a",)),
        ('root ::= start a A fooBar foo-bar # ?start: "x"\nstart ::= "x"\na ::= "y"\nA ::= "z"\n'
         'fooBar ::= "1"\nfoo-bar ::= [a&&b]', ("xyz1&", "xyz1a"), ("xyy1a",)),
        ('root ::= "“" [^”]* "”"', ("“ab”", "“”"), ("“ab", "ab”")),
        ('?start: "a" b // b ::= "c"\n!b: "::="', ("a::=",), ("ac",)),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_rules_match_what_they_match_in_llama_cpp(rules, fits, differs):
    assert [text for text in (*fits, *differs) if matches(Grammar.rules(rules), text)] == [*fits]


KINDS = {k: {"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"}


@pytest.mark.parametrize(
    ("schema", "fits", "differs"),
    [
        ({"pattern": '^[^"<>]{1,9}$', "type": "string"}, ('"a\\nb\\\\"',), ('"a\\"b"',)),
        ({"patternProperties": {r"^[^\\]+$": {"const": 1}}, "type": "object", "additionalProperties": False},
         ('{"a": 1}',), ('{"\\\\": 1}',)),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "array", "items": False}}},
         ("[]", "null"), ("1",)),
        ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": KINDS},
         ('{"k": "a"}', '{"k": "b"}'), ('{"k": "c"}',)),
        ({"type": "array", "items": {"const": 1}, "uniqueItems": False}, ("[1, 1]",), ("[2]",)),
        ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}},
         ('{"a": 1}',), ('{"a": 2}',)),
        ({"type": "integer", "maximum": 2**63 - 1, "default": 2**64}, ("9007199254740993",), ("1" + 19 * "0",)),
        ({"$ref": "#/x/default", "x": {"default": {"const": 1}}, "type": "integer", "minProperties": 9}, "1", "2"),
        ({"pattern": '^[^-"]+$', "type": "string"}, ('"a"',), ('"a\\"b"', '"-"')),
        ({"pattern": "^[[&+--a&&c~~]$", "type": "string"}, ('"["', '"&"', '","', '"a"', '"~"'), ('"b"', '"."')),
        ({"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]},
         ("[null]", "null"), ("[1]",)),
        ({"const": {"uniqueItems": False}}, ('{"uniqueItems": false}',), ("{}",)),
    ],
    ids=str,
)  # fmt: skip
def test_schemas_that_are_rewritten(schema, fits, differs):
    assert [text for text in (*fits, *differs) if matches(Grammar.json_schema(schema), text)] == [*fits]


# Which schemas have a finite value: the definitions that do are a least fixed point.

NEXT = {"$ref": "#/$defs/b%20b"}
EVERY = {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}


def object_of(*parts):
    return {"type": "object", "properties": {str(i): part for i, part in enumerate(parts)}, "required": ["0"]}


def defined(**definitions):
    return {"$ref": "#/$defs/a", "$defs": {name.replace("_", " "): part for name, part in definitions.items()}}


FINITE = [
    {},
    True,
    {"$ref": "#/nowhere"},
    defined(a=object_of(NEXT), b_b={"const": 1}),
    defined(a=object_of({"const": 1}, {"$ref": "#/$defs/a"})),
    defined(a={"anyOf": [object_of({"$ref": "#/$defs/a"}), NEXT]}, b_b={"type": ["array", "null"], "minItems": 1}),
    defined(a={"type": "array", "items": {"$ref": "#/$defs/a"}}),
    defined(a={"type": "array", "prefixItems": [{}], "items": {"$ref": "#/$defs/a"}, "minItems": 1}),
    defined(a=object_of({"$ref": "#/$defs/b%20b/anyOf/1"}), b_b={"anyOf": [NEXT, {"const": 1}]}),
    {"allOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"type": "string"}}},
    object_of({"$ref": "#n"}) | {"$defs": {"b": {"$anchor": "n", "const": 1}}},
    EVERY | {"patternProperties": {"a": {"const": 1}}},
]
INFINITE = [
    False,
    object_of({"$ref": "#"}),
    EVERY,
    defined(a=NEXT, b_b={"$ref": "#/$defs/a"}),
    defined(a=object_of(NEXT), b_b={"oneOf": [object_of({"$ref": "#/$defs/a"}), {"allOf": [NEXT]}]}),
    defined(a={"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}),
    defined(a={"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}),
    defined(a={"anyOf": [False, {"$ref": "#/$defs/b%20b/anyOf/0"}]}, b_b={"anyOf": [NEXT, {"const": 1}, NEXT]})
    | {"allOf": [object_of({"$ref": "#"})]},
]


def test_finite_and_infinite():
    assert [schema for schema in FINITE if not has_finite_value(schema)] == []
    assert [schema for schema in INFINITE if has_finite_value(schema)] == []


def test_long_chains_and_wide_diamonds():
    """More definitions than calls may be nested, each requiring the next twice, in one order and in the other."""
    names = [f"d{i}" for i in range(2_000)]
    for order in (names, names[::-1]):
        links = itertools.pairwise(order)
        definitions = {name: object_of(*[{"$ref": f"#/$defs/{after}"}] * 2) for name, after in links}
        schema = {"$ref": f"#/$defs/{order[0]}", "$defs": {**definitions, order[-1]: {"const": 1}}}
        assert has_finite_value(schema)
        schema["$defs"][order[-1]] = {"$ref": f"#/$defs/{order[0]}"}
        assert not has_finite_value(schema)
