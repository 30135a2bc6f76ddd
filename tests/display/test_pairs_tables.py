"""Pairs on paper, on screens of several widths: what was compared, planned, listed; hostile names included."""

from __future__ import annotations

import copy
from io import StringIO

import pytest
from driver import DRAFT, TARGET
from rich.cells import cell_len
from rich.console import Console

from specdec_cli.display import pair_tables as pairs
from specdec_cli.models.assessment import Room, assess
from specdec_cli.models.gguf import read_header
from specdec_cli.models.tokenizer_comparison import Check, Comparison, compare

GB = 1000**3


def remote(name, size):
    file = {"name": f"{name}.gguf", "size": size, "digest": "a" * 64, "here": False, "begun": 0, "path": f"/x/{name}"}
    about = {"reference": f"org/{name}:Q8_0", "repo": f"org/{name}", "commit": "c" * 40, "licence": "apache-2.0"}
    return {**about, "gated": False, "files": [file]}


def checked(room=Room(0, 16 * GB), **changes):  # noqa: B008
    """What `check` finds for the bundled pair on a given machine."""
    headers = read_header(TARGET), read_header(DRAFT)
    result = {
        **compare(*headers).to_json(),
        **assess(*headers, 4096, room).to_json(),
        "notes": ["a note"],
    }
    for role, path in (("target", "big.gguf"), ("draft", "org/small:Q8_0")):
        result[role] |= {"name": path, "path": path, "remote": remote("small", 5) if role == "draft" else None}
    return {**result, **changes}


CHECK = checked()
OTHER = Comparison(
    "incompatible",
    4096,
    2,
    (
        Check("pre-tokenizer", "gpt-2", "gpt-2", "same"),
        Check(
            *("token texts", "4,096", "2 differ", "different"),
            *("token 300 is 'ab' in the target, 'cd' in the draft (2 of 4,096 differ)", True),
        ),
        Check("vocabulary", "4,100", "4,096", "harmless", "the target's vocabulary ends in 4 reserved ids"),
    ),
)
INCOMPATIBLE = checked(Room(0, 10**6), **OTHER.to_json())
PLAN = {
    "name": "big+small",
    "target": {"remote": remote("big", 5 * GB)},
    "draft": {"remote": remote("small", GB)},
    "to_download": 6 * GB,
    "free": 100 * GB,
    "cache": "/var/cache/huggingface/hub",
    "check": CHECK,
    "notes": ["the server knows no ranges"],
}
PROPOSALS = [
    {"name": "org/tiny-GGUF:Q8_0", "size": GB, "n_params": 600_000_000, "ratio": 0.05, "verdict": "identical"},
    {"name": "org/small-GGUF:Q8_0", "size": 2 * GB, "n_params": 1_700_000_000, "ratio": 0.142, "verdict": "compatible"},
]
ROWS = [
    {
        **{"name": "demo", "target": "t.gguf", "draft": "d.gguf", "description": "A small pair.", "fits_gb": None},
        **{"size": 10_700_000, "here": "yes", "speed": {"speedup": 1.234}},
    },
    {
        **{"name": "mistral-small-3.1-24b", "target": "org/t:Q4_K_M", "draft": "org/d:Q8_0", "description": ""},
        **{"fits_gb": 24, "size": 14.7 * GB, "here": "in part", "speed": None},
    },
    {
        **{"name": "c", "target": "t.gguf", "draft": None, "description": "One with a long description, " * 5},
        **{"fits_gb": 7.5, "size": None, "here": "no", "speed": None},
    },
]
ABOUT = {
    "name": "mine (your own)",
    "what": "Two models",
    "target": "org/t:Q8_0",
    "draft": None,
    "why": "",
    "licence": "MIT",
    "sources": ["first: https://example.org/" + "x" * 60, "second"],
    "files": [],
    "run": 'specdec run -p mine "..."',
}


def shown(parts, width=80, **options):
    console = Console(file=StringIO(), width=width, highlight=False, _environ={}, **options)
    for part in parts if isinstance(parts, list) else [parts]:
        console.print(part)
    return console.file.getvalue()


VIEWS = {
    "check": (pairs.check_tables, CHECK),
    "other": (pairs.check_tables, INCOMPATIBLE),
    "plan": (pairs.plan_tables, PLAN),
    "proposals": (pairs.proposals_table, PROPOSALS),
    "list": (pairs.list_table, ROWS),
    "profile": (pairs.profile_table, ABOUT),
}


@pytest.mark.parametrize("view", VIEWS)
def test_as_it_looks(snapshot, view):
    show, data = VIEWS[view]
    text = "".join(line.rstrip() + "\n" for line in shown(show(data)).splitlines())
    snapshot(f"pairs_{view}.txt", text)


@pytest.mark.parametrize("width", [8, 20, 40, 60, 200])
@pytest.mark.parametrize("view", VIEWS)
def test_any_width(view, width):
    show, data = VIEWS[view]
    lines = shown(show(data), width).splitlines()
    assert lines and max(map(cell_len, lines)) <= width


def test_on_forty_columns_the_verdict_is_whole():
    text = " ".join(shown(pairs.check_tables(INCOMPATIBLE), 40).split())
    for part in ("incompatible: token 300 is 'ab' in the target, 'cd' in the draft (2 of 4,096 differ)", "a note"):
        assert part in text
    assert "does NOT fit this machine" in text and "10% of the target's parameters" in text


def test_on_forty_columns_a_list_says_what_is_here():
    lines = shown(pairs.list_table(ROWS), 40).splitlines()[1:]
    assert [row["name"] in line for row, line in zip(ROWS, lines, strict=True)] == [True] * 3
    assert [row["here"] in line for row, line in zip(ROWS, lines, strict=True)] == [True] * 3
    assert "1.23x" in lines[0]


def test_on_forty_columns_proposals_can_be_told_apart():
    text = shown(pairs.proposals_table(PROPOSALS), 40)
    assert all(part in text for part in ("5.0%", "14.2%", "identical", "compatible"))


# --- what is said ---


def findings(**changes) -> str:
    return " ".join(shown(pairs.check_tables({**CHECK, **changes}), 200).split())


def test_verdicts():
    assert "verdict identical: the tokenizers are the same in every part" in findings()
    text = findings(verdict="compatible", reason="the draft's vocabulary ends in 5 reserved ids")
    assert "verdict compatible: the draft's vocabulary ends in 5 reserved ids" in text


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("verdict", ["identical", "compatible", "incompatible"])
def test_where_llama_cpp_judges_otherwise_it_is_said(verdict, accepts):
    text = findings(verdict=verdict, reason="something", llama_cpp_accepts=accepts)
    assert ("llama.cpp itself would take this pair" in text) == (accepts and verdict == "incompatible")
    assert ("llama.cpp itself would refuse this pair" in text) == (not accepts and verdict != "incompatible")


@pytest.mark.parametrize(
    ("room", "says"),
    [
        (Room(0, 16 * GB), "fits main memory (16.0 GB of main memory free)"),
        (Room(8 * GB, 16 * GB), "fits the GPU (8.0 GB of GPU memory and 16.0 GB of main memory free)"),
        (Room(8 * GB, None), "fits the GPU (8.0 GB of GPU memory and unknown main memory free)"),
        (Room(10**8, 16 * GB), "fits the GPU in part only"),
        (Room(0, 10**7), "does NOT fit this machine (10.0 MB of main memory free)"),
        (Room(0, None), "does not tell how much memory is free"),
    ],
)
def test_memory(room, says):
    text = " ".join(shown(pairs.check_tables(checked(room)), 200).split())
    assert says in text and "with -c 4,096" in text


def test_parameters_of_a_mixture_of_experts():
    side = {**CHECK["target"], "n_params": 30_500_000_000, "n_active_params": 3_300_000_000, "n_ctx_train": None}
    text = findings(target=side)
    assert "30.50 billion, 3.30 billion in use" in text and "context unknown" in text


def test_a_plan_tells_what_is_here_and_what_is_begun():
    plan = copy.deepcopy(PLAN)
    plan["target"]["remote"]["files"][0] |= {"begun": GB}
    plan["draft"]["remote"]["files"][0] |= {"here": True}
    text = " ".join(shown(pairs.plan_tables(plan), 200).split())
    assert "20% here" in text and "here already" in text and "5.0 GB" in text and "6.0 GB" in text
    alone = {**plan, "draft": None, "check": None, "notes": []}
    assert "verdict" not in shown(pairs.plan_tables(alone)) and "org/big/big.gguf" in shown(pairs.plan_tables(alone))
    local = {**plan, "target": {"remote": None}}
    assert "org/big" not in shown(pairs.plan_tables(local))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (10_700_000, "10.7 MB"), (GB, "1.0 GB"), (1500 * GB, "1,500.0 GB")],
)
def test_sizes(count, text):
    assert pairs.size(count) == text


# --- what others wrote ---

HOSTILE = "a\x1b[31m\x07\x9b2J\u202e\x00\u2066b.gguf"
OBEYED = {"\x1b", "\x07", "\x9b", "\u202e", "\x00", "\u2066"}
WIDE = "\u4e2d\u6587\u6a21\u578b" * 10
RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd"
PLACES = [
    *(("check", role, key) for role in ("target", "draft") for key in ("name", "architecture", "quantisation")),
    *(("check", key) for key in ("reason", ("notes", 0), ("opinions", 0))),
    *(("other", "checks", 0, key) for key in ("target", "draft")),
    *(("plan", "target", "remote", key) for key in ("repo", "licence", ("files", 0, "name"))),
    *(("plan", key) for key in ("cache", ("notes", 0), ("check", "reason"))),
    ("proposals", 0, "name"),
    *(("list", 0, key) for key in ("name", "description")),
    *(("list", 1, key) for key in ("target", "draft")),
    *(("profile", key) for key in ("name", "what", "licence", ("sources", 0), "target")),
]


def planted(place, text, width=300):
    view, *keys = place
    flat = [part for key in keys for part in (key if isinstance(key, tuple) else (key,))]
    show, data = VIEWS[view]
    data = inner = copy.deepcopy(data)
    for key in flat[:-1]:
        inner = inner[key]
    inner[flat[-1]] = text
    return shown(show(data), width)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_nothing_that_a_terminal_would_obey(place):
    text = planted(place, HOSTILE)
    assert "b.gguf" in text and not OBEYED & set(text)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", ["[/x]", "[bold]x[/bold]", "list[int]", ":smile:", "{curly}", RIGHT_TO_LEFT, "a\\b"])
def test_text_is_shown_as_it_is(place, name):
    assert name in planted(place, name)


@pytest.mark.parametrize("width", [40, 300])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_wide_letters_take_two_columns(place, width):
    lines = planted(place, WIDE, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert width == 40 or WIDE[:2] in "".join(lines)


def test_on_a_terminal_only_our_own_styles_appear():
    text = shown(pairs.check_tables({**CHECK, "reason": HOSTILE}), force_terminal=True, color_system="standard")
    assert "\x1b[31m" not in text and "\x1b[" in text
