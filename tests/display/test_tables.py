"""Pairs and tunings as tables on screens of several widths: compared, planned, listed, measured."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from driver import DRAFT, TARGET
from rich.cells import cell_len

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.display import pair_tables as tables
from specdec_cli.display import tuning_tables
from specdec_cli.display.tables import lines_table
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.tokenizer_comparison import Check
from specdec_cli.measure.simulate import Prediction
from specdec_cli.measure.tune import HardwarePrediction, MeasuredTuning
from specdec_cli.pairs.draft_proposals import DraftProposal
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.pairs.model_sources import ModelSource
from specdec_cli.pairs.pair_check import FreeMemory, compare_sources
from specdec_cli.pairs.pair_download import DownloadPlan, PlannedFile, PlannedModel
from specdec_cli.pairs.pair_list import PairSummary
from specdec_cli.pairs.speeds import Speed

GB = 1000**3
REMOTE = RemoteModel("org/small:Q8_0", "org/small", "c" * 40, (RemoteFile("small.gguf", 5, "a" * 64),))


def planned(name, size):
    files = (PlannedFile(f"{name}.gguf", size, "a" * 64, False, 0, f"/x/{name}"),)
    remote = RemoteModel(f"org/{name}:Q8_0", f"org/{name}", "c" * 40, files, False, "apache-2.0")
    return PlannedModel(name, None, remote)


def checked(comparison, free):
    """What `check` says of the bundled pair, or of one like it, with so many bytes of memory free."""
    target = ModelSource("big.gguf", read_header(TARGET), None, None)
    draft = ModelSource("org/small:Q8_0", read_header(DRAFT), REMOTE, None)
    return replace(compare_sources(target, draft, comparison, 4096, FreeMemory(0, free)), notes=("a note",))


CHECK = checked(tokenizer_comparison.compare(read_header(TARGET), read_header(DRAFT)), 16 * GB)
DIFFERENT = "token 300 is 'ab' in the target, 'cd' in the draft (2 of 4,096 differ)"
PARTS = (
    Check("pre-tokenizer", "gpt-2", "gpt-2", "same"),
    Check("token texts", "4,096", "2 differ", "different", DIFFERENT, True),
    Check("vocabulary", "4,100", "4,096", "harmless", "the target's vocabulary ends in 4 reserved ids"),
)
INCOMPATIBLE = checked(tokenizer_comparison.Comparison("incompatible", 4096, 2, PARTS), 10**6)
PLAN = DownloadPlan(
    *("big+small", True, planned("big", 5 * GB), planned("small", GB), 6 * GB, 100 * GB),
    *("/var/cache/huggingface/hub", CHECK, ("the server knows no ranges",)),
)
PROPOSALS = [
    DraftProposal("org/tiny-GGUF:Q8_0", GB, 600_000_000, 0.05, "identical"),
    DraftProposal("org/small-GGUF:Q8_0", 2 * GB, 1_700_000_000, 0.142, "compatible"),
]
SPEED = Speed(1.234, 1.2, 1.3, "k=3", "today")
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


def prediction(category, auto, best_k):
    fixed = auto - 0.05 if best_k else 1.0
    return Prediction(category, 640, 0.658, 1.4, alone_tokens_per_s=1234.5, auto=auto, best_k=best_k, fixed=fixed)


SHARED = {
    "target": "target.gguf",
    "draft": "draft.gguf",
    "costs": Costs(Curve({1: 0.0005, 16: 0.004, 2: 0.00075, 4: 0.001}), Curve({1: 0.0002, 512: 0.1})),
    "predictions": (prediction("code", 1.31, 3), prediction("prose", 0.99, 0), prediction("all", 1.15, 2)),
    "verdict": ("This pair pays on this machine for code (1.31x).", "A draft token costs 40% of a target token."),
}
MEASURED = MeasuredTuning(
    **SHARED,
    greedy=True,
    recorded_tokens=1280,
    machine="AMD EPYC; 8 cores",
    ctx=1024,
    threads=4,
    threads_draft=1,
    gpu_layers=-1,
    gpu_layers_draft=0,
    threads_tried={"target": {1: 0.0015, 4: 0.0005}, "draft": {1: 0.0002}},
    placement_tried={"GPU": 0.0009, "CPU": 0.0002},
    filled={"tokens": 1016, "target": 0.001, "draft": 0.0003},
    memory=(),
    notes=("the draft is larger than the target",),
    kept="/path/to/config/specdec/tuned/target+draft-0123.json",
)
H200 = {"name": "h200", "description": "H200, CUDA; 8B and 1B", "basis": "derived", "source": "a blog"}
WHAT_IF = HardwarePrediction(**SHARED, greedy=False, recorded_tokens=7739, hardware=H200)


def shown(parts, width=80, **options):
    console = SafeConsole(file=StringIO(), width=width, _environ={}, **options)
    for part in parts if isinstance(parts, list) else [parts]:
        console.print(part)
    return console.file.getvalue()


VIEWS = {
    "pairs_check": (tables.check_tables, CHECK),
    "pairs_other": (tables.check_tables, INCOMPATIBLE),
    "pairs_plan": (tables.plan_tables, PLAN),
    "pairs_proposals": (tables.proposals_table, PROPOSALS),
    "pairs_list": (tables.list_table, PAIRS),
    "pairs_profile": (lines_table, LINES),
    "tuning": (tuning_tables.tables, MEASURED),
    "tuning_what_if": (tuning_tables.tables, WHAT_IF),
}


@pytest.mark.parametrize("view", VIEWS)
def test_as_it_looks(snapshot, view):
    show, data = VIEWS[view]
    width = 100 if "tuning" in view else 80
    snapshot(f"{view}.txt", "".join(line.rstrip() + "\n" for line in shown(show(data), width).splitlines()))


@pytest.mark.parametrize(
    ("verdict", "outcome", "accepts", "says"),
    [
        ("translatable", "different", True, "would accept this pair"),
        ("translatable", "different", False, ""),
        ("compatible", "harmless", False, "would refuse this pair"),
        ("incompatible", "same", True, ""),  # a model that can't run
    ],
)
def test_where_llama_cpp_has_another_rule(verdict, outcome, accepts, says):
    parts = (Check("token texts", "4,096", "2 differ", outcome),)
    told = shown(tables.check_tables(replace(CHECK, verdict=verdict, checks=parts, llama_cpp_accepts=accepts)))
    assert says in told and ("llama.cpp itself" in told) == bool(says)


@pytest.mark.parametrize("width", [1, 60, 200])
@pytest.mark.parametrize("view", VIEWS)
def test_any_width(view, width):
    show, data = VIEWS[view]
    text = shown(show(data), width)
    assert max(map(cell_len, text.splitlines())) <= width
    if "tuning" in view and width >= 60:
        assert all(figure in text for figure in ("1,234.5", "66%", "1.31x", "none pays", "1.40"))


def test_on_forty_columns_what_matters_is_whole():
    text = " ".join(shown(tables.check_tables(INCOMPATIBLE), 40).split())
    for part in (f"incompatible: {DIFFERENT}", "a note", "does NOT fit this machine"):
        assert part in text
    text = shown(tables.proposals_table(PROPOSALS), 40)
    assert all(part in text for part in ("5.0%", "14.2%", "identical", "compatible"))


def test_a_name_is_whole_on_any_width():
    pairs = [replace(PAIRS[0], name="mistral-small-3.1-24b")]
    for width in (8, 12, 20):
        lines = shown(tables.list_table(pairs), width).splitlines()
        assert "".join(line.split()[0] for line in lines if line.strip()).endswith("mistral-small-3.1-24b")


def test_a_list_has_no_empty_column():
    unmeasured = [replace(pair, speed=None, here="no") for pair in PAIRS]
    assert shown(tables.list_table(unmeasured)).split("\n")[0].split() == ["name", "needs", "size", "models"]


WIDE = "\u4e2d\u6587\u6a21\u578b" * 10
WIDENED = [
    (tables.check_tables, replace(INCOMPATIBLE, checks=[replace(PARTS[0], draft=WIDE)], notes=[WIDE])),
    (tables.plan_tables, replace(PLAN, notes=[WIDE])),
    (tables.proposals_table, [replace(PROPOSALS[0], name=WIDE)]),
    (tables.list_table, [replace(PAIRS[0], name=WIDE, description=WIDE)]),
    (lines_table, LINES | {"sources": [WIDE]}),
    (tuning_tables.tables, replace(MEASURED, draft=WIDE, verdict=[WIDE])),
    (tuning_tables.tables, replace(WHAT_IF, hardware=H200 | {"description": WIDE})),
]


@pytest.mark.parametrize(("show", "data"), WIDENED)
def test_characters_of_two_columns_fit(show, data):
    lines = shown(show(data), 40).splitlines()
    assert max(map(cell_len, lines)) <= 40 and WIDE[0] in "".join(lines)
