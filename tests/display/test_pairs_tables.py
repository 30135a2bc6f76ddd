"""Pairs as tables on screens of several widths: what was compared, planned, listed; hostile names included."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from driver import DRAFT, ESCAPE, TARGET
from rich.cells import cell_len
from rich.console import Console

from specdec_cli.display import pair_tables as tables
from specdec_cli.display.grids import lines_table
from specdec_cli.engine.model_pair import ModelSource
from specdec_cli.engine.pair_check import FreeMemory, compare_sources
from specdec_cli.hub.repository import RemoteFile, RemoteModel
from specdec_cli.models import tokenizer_comparison
from specdec_cli.models.gguf import read_header
from specdec_cli.models.tokenizer_comparison import Check
from specdec_cli.results import (
    DownloadPlan,
    DraftProposal,
    PairSummary,
    PlannedFile,
    PlannedModel,
    PlannedRemote,
    format_bytes,
)
from specdec_cli.store.tuning import Speed

GB = 1000**3
REMOTE = RemoteModel("org/small:Q8_0", "org/small", "c" * 40, (RemoteFile("small.gguf", 5, "a" * 64),))


def planned(name, size):
    files = (PlannedFile(f"{name}.gguf", size, "a" * 64, False, 0, f"/x/{name}"),)
    return PlannedModel(
        name, None, PlannedRemote(f"org/{name}:Q8_0", f"org/{name}", "c" * 40, files, False, "apache-2.0")
    )


def checked(free=FreeMemory(0, 16 * GB), comparison=None):  # noqa: B008
    """What `check` says of the bundled pair on a given machine."""
    target = ModelSource("big.gguf", read_header(TARGET), None, None)
    draft = ModelSource("org/small:Q8_0", read_header(DRAFT), REMOTE, None)
    same = tokenizer_comparison.compare(target.header, draft.header)
    check = compare_sources(target, draft, same, 4096, free)
    if comparison:
        check = replace(check, checks=comparison.checks, verdict=comparison.verdict, reason=comparison.reason)
    return replace(check, notes=("a note",), llama_cpp_accepts=not comparison)


CHECK = checked()
DIFFERENT = "token 300 is 'ab' in the target, 'cd' in the draft (2 of 4,096 differ)"
OTHER = tokenizer_comparison.Comparison(
    "incompatible",
    4096,
    2,
    (
        Check("pre-tokenizer", "gpt-2", "gpt-2", "same"),
        Check("token texts", "4,096", "2 differ", "different", DIFFERENT, True),
        Check("vocabulary", "4,100", "4,096", "harmless", "the target's vocabulary ends in 4 reserved ids"),
    ),
)
INCOMPATIBLE = checked(FreeMemory(0, 10**6), OTHER)
PLAN = DownloadPlan(
    *("big+small", True, planned("big", 5 * GB), planned("small", GB), 6 * GB, 100 * GB),
    *("/var/cache/huggingface/hub", CHECK, ("the server knows no ranges",)),
)
PROPOSALS = [
    DraftProposal("org/tiny-GGUF:Q8_0", GB, 600_000_000, 0.05, "identical"),
    DraftProposal("org/small-GGUF:Q8_0", 2 * GB, 1_700_000_000, 0.142, "compatible"),
]
SPEED = Speed(1.234, None, None, "k=3", "today")
PAIRS = [
    PairSummary("demo", "t.gguf", "d.gguf", "A small pair.", None, 10_700_000, "yes", None, (), SPEED),
    PairSummary("mistral-small-3.1-24b", "org/t:Q4_K_M", "org/d:Q8_0", "", 24, 14700000000, "in part", None, (), None),
    PairSummary("c", "t.gguf", None, "One with a long description, " * 5, 7.5, None, "no", None, (), None),
]
LINES = {
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
    "check": (tables.check_tables, CHECK),
    "other": (tables.check_tables, INCOMPATIBLE),
    "plan": (tables.plan_tables, PLAN),
    "proposals": (tables.proposals_table, PROPOSALS),
    "list": (tables.list_table, PAIRS),
    "profile": (lines_table, LINES),
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


def test_on_forty_columns_what_matters_is_whole():
    text = " ".join(shown(tables.check_tables(INCOMPATIBLE), 40).split())
    fit = "does NOT fit this machine"
    for part in (f"incompatible: {DIFFERENT}", "a note", fit, "10% of the target's parameters"):
        assert part in text
    lines = shown(tables.list_table(PAIRS), 40).splitlines()[1:]
    assert all(pair.name in line and pair.here in line for pair, line in zip(PAIRS, lines, strict=True))
    assert "1.23x" in lines[0]
    text = shown(tables.proposals_table(PROPOSALS), 40)
    assert all(part in text for part in ("5.0%", "14.2%", "identical", "compatible"))


def said(check) -> str:
    return " ".join(shown(tables.check_tables(check), 200).split())


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("verdict", ["identical", "compatible", "incompatible"])
def test_verdicts_and_where_llama_cpp_judges_otherwise(verdict, accepts):
    text = said(replace(CHECK, verdict=verdict, reason="something", llama_cpp_accepts=accepts))
    assert f"verdict {verdict}: something" in text
    assert ("llama.cpp itself would take this pair" in text) == (accepts and verdict == "incompatible")
    assert ("llama.cpp itself would refuse this pair" in text) == (not accepts and verdict != "incompatible")


@pytest.mark.parametrize(
    ("free", "says"),
    [
        (FreeMemory(8 * GB, 16 * GB), "fits the GPU (8.0 GB of GPU memory and 16.0 GB of main memory free)"),
        (FreeMemory(8 * GB, None), "fits the GPU (8.0 GB of GPU memory and unknown main memory free)"),
        (FreeMemory(10**8, 16 * GB), "fits the GPU in part only"),
        (FreeMemory(0, None), "does not tell how much memory is free"),
    ],
)
def test_memory(free, says):
    assert says in said(checked(free))


def test_parameters_of_a_mixture_of_experts():
    target = replace(CHECK.target, n_params=30_500_000_000, n_active_params=3_300_000_000, n_ctx_train=None)
    text = said(replace(CHECK, target=target))
    assert "30.50 billion, 3.30 billion in use" in text and "context unknown" in text


def test_a_plan_tells_what_is_here_and_what_is_begun():
    def with_file(model, **changes):
        return replace(model, remote=replace(model.remote, files=(replace(model.remote.files[0], **changes),)))

    plan = replace(PLAN, target=with_file(PLAN.target, begun=GB), draft=with_file(PLAN.draft, here=True))
    text = " ".join(shown(tables.plan_tables(plan), 200).split())
    assert "20% here" in text and "here already" in text and "5.0 GB" in text and "6.0 GB" in text
    alone = shown(tables.plan_tables(replace(plan, draft=None, check=None, notes=())))
    assert "verdict" not in alone and "org/big/big.gguf" in alone
    assert "org/big" not in shown(tables.plan_tables(replace(plan, target=replace(PLAN.target, remote=None))))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (10_700_000, "10.7 MB"), (GB, "1.0 GB"), (1500 * GB, "1,500.0 GB")],
)
def test_sizes(count, text):
    assert format_bytes(count) == text


HOSTILE = "a\x1b[31m\x07\x9b2J\u202e\x00\u2066b.gguf"
OBEYED = {"\x1b", "\x07", "\x9b", "\u202e", "\x00", "\u2066"}
WIDE = "\u4e2d\u6587\u6a21\u578b" * 10
LITERAL = ["[/x]", "[bold]x[/bold]", "list[int]", ":smile:", "{curly}", "\u05e9\u05dc\u05d5\u05dd", "a\\b"]
PLACES = [
    *(("check", role, key) for role in ("target", "draft") for key in ("name", "architecture", "quantisation")),
    *(("check", *keys) for keys in (("reason",), ("notes", 0), ("opinions", 0))),
    *(("other", "checks", 0, key) for key in ("target", "draft")),
    *(("plan", "target", "remote", *keys) for keys in (("repo",), ("licence",), ("files", 0, "name"))),
    *(("plan", *keys) for keys in (("cache",), ("notes", 0), ("check", "reason"))),
    ("proposals", 0, "name"),
    *(("list", 0, key) for key in ("name", "description")),
    *(("list", 1, key) for key in ("target", "draft")),
    *(("profile", *keys) for keys in (("name",), ("what",), ("licence",), ("sources", 0), ("target",))),
]


def changed(data, keys, text):
    """The same with a text in one place."""
    if not keys:
        return text
    key, *rest = keys
    if isinstance(data, dict):
        return {**data, key: changed(data[key], rest, text)}
    if isinstance(data, (list, tuple)):
        return [changed(item, rest, text) if i == key else item for i, item in enumerate(data)]
    return replace(data, **{key: changed(getattr(data, key), rest, text)})


def planted(place, text, width=300, **options):
    show, data = VIEWS[place[0]]
    return shown(show(changed(data, place[1:], text)), width, **options)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_names_are_shown_and_never_obeyed(place):
    text = planted(place, HOSTILE)
    assert "b.gguf" in text and not OBEYED & set(text)
    for name in LITERAL:
        assert name in planted(place, name)
    for width in (40, 300):
        lines = planted(place, WIDE, width).splitlines()
        assert max(map(cell_len, lines)) <= width
    assert WIDE[:2] in "".join(lines)
    text = planted(place, HOSTILE, force_terminal=True, color_system="standard")
    assert "a\x1b[31m" not in text and not (OBEYED - {ESCAPE}) & set(text)
