"""Constraints that make much work end in an answer or in a line that says why not."""

import json

import fuzzing
import pytest
from children import answered
from hostile_schemas import constraint

pytestmark = pytest.mark.fuzz
SHARDS = 20


@pytest.mark.parametrize("shard", range(SHARDS))
def test_hostile_constraints(shard):
    def case(_, chance):
        kind, value = constraint(chance)
        text = value if isinstance(value, str) else json.dumps(value)
        fuzzing.in_child(answered, kind, text, seconds=5.0).assert_sound(f"{kind} {text[:2000]}")

    fuzzing.try_all(50, f"schemas/{shard}", case)
