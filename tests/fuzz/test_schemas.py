"""Constraints that make much work end in an answer or in a line that says why not."""

import json

from children import answered
from fuzzing import cases, in_child
from hostile_schemas import constraint


@cases(1000)
def test_hostile_constraints(chance):
    kind, value = constraint(chance)
    text = value if isinstance(value, str) else json.dumps(value)
    in_child(answered, kind, text).assert_sound(f"{kind} {text[:2000]}")
