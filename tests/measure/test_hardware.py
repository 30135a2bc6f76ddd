"""What other machines cost: the files that come with specdec, and the user's own."""

import pytest
from driver import DEMO

from specdec_cli.decoding.errors import UsageError
from specdec_cli.measure import hardware
from specdec_cli.pairs import profiles

BUNDLED = sorted(path.stem for path in (DEMO.parent / "hardware").glob("*.yaml"))
LINES = {
    "description": "a machine",
    "basis": "measured",
    "source": "by hand",
    "verify_ms": "{1: 20, 4: 26}",
    "draft_ms": "{1: 5}",
    "other_ms": "0.5",
}


@pytest.fixture
def folder():
    found = profiles.config_dir() / "hardware"
    found.mkdir(parents=True)
    return found


def write(folder, **changes):
    """A good file but for the changes; None leaves a key out."""
    lines = {key: value for key, value in {**LINES, **changes}.items() if value is not None}
    (folder / "mine.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))


def test_what_repeated_passes_take_need_not_be_known(folder):
    write(folder)
    assert hardware.load("mine").costs.repeated is None
    write(folder, repeated_ms="{1: 19, 3: 22, 5: 27}")
    costs = hardware.load("mine").costs
    assert [costs.verify_after(3, alike) for alike in (2, 3)] == [pytest.approx(0.024), 0.022]
    assert costs.verify_after(6, 9) == costs.verify(6) and costs.verify_after(1, 9) == 0.02


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_machine(name):
    found = hardware.load(name)
    verify, draft = ([curve(n) for n in range(1, 18)] for curve in (found.costs.verify, found.costs.draft))
    assert 1 in found.costs.verify.points and 1 in found.costs.draft.points
    assert 0 < verify[0] < 10 and verify == sorted(verify)
    assert 0 < draft[0] < verify[0] and draft == sorted(draft)
    assert found.costs.draft(4096) > 0 and found.costs.other >= 0
    assert found.name == name and found.description and found.source
    assert "\n" not in found.description + found.source


def test_milliseconds_become_seconds(folder):
    write(folder, other_ms=None, description=None, source=None)
    assert len(BUNDLED) >= 5 and hardware.names() == sorted([*BUNDLED, "mine"])
    costs = hardware.load("mine").costs
    assert (hardware.load("mine").description, hardware.load("mine").source) == ("", "")
    assert costs.verify.points == {1: 0.020, 4: 0.026} and costs.verify(2) == pytest.approx(0.022)
    assert (costs.draft(1), costs.other) == (0.005, 0.0)
    write(folder)
    assert hardware.load("mine").costs.other == 0.0005


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("verify_ms", None, "{1: 20, 4: 23}"),
        ("verify_ms", "{1: 0}", "{1: 20, 4: 23}"),
        ("verify_ms", "{1: '20'}", "{1: 20, 4: 23}"),
        ("verify_ms", "{1: 1" + "0" * 400 + "}", "{1: 20, 4: 23}"),
        ("verify_ms", "{1: 20, 2.5: 30}", "{1: 20, 4: 23}"),
        ("draft_ms", "{2: 20}", "{1: 20, 4: 23}"),
        ("repeated_ms", "{2: 20}", "{1: 20, 4: 23}"),
        ("other_ms", "-0.1", "milliseconds"),
        ("basis", "guessed", "measured or derived"),
        ("verify", "{1: 20}", "'verify_ms'"),
    ],
)
def test_a_value_that_is_none(folder, key, value, says):
    write(folder, **{key: value})
    with pytest.raises(UsageError) as caught:
        hardware.load("mine")
    assert "mine.yaml" in str(caught.value) and "\n" not in str(caught.value)
    assert key in f"{caught.value} {caught.value.hint}" and says in f"{caught.value} {caught.value.hint}"
