"""`specdec draft`, and `--drafter self` with what it made; how drafts are trained: tests/training."""

import os
import shlex
import signal
from dataclasses import replace

import ggufs
import pytest
import tiny
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, configure, run, start, succeeded, told
from hub_pairs import wait_until

from specdec_cli.cli.output import print_parts
from specdec_cli.display import draft_making
from specdec_cli.display.draft_making import training_tables
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import quantize
from specdec_cli.make_drafts.draft_figures import CategoryAcceptance, DraftFigures, ExpectedSpeedup
from specdec_cli.make_drafts.training_run import DraftTrainingResult
from specdec_cli.pairs import made_drafts as drafts

KEEP = ("--keep-layers", "0-3")


def draft(*args):
    return call("draft", *args)


def made(*args):
    return told("draft", *args)


def inside(folder):
    return sorted(path.name for path in folder.iterdir())


def answer(*args):
    return told("run", "-n", 32, *args, PROMPT)


@pytest.fixture
def out(tmp_path):
    """The place for a draft, in a folder that holds nothing else."""
    (tmp_path / "made").mkdir()
    return tmp_path / "made" / "out.gguf"


# --- what is made ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_copy_that_would_be_no_smaller_is_refused_before_it_is_made(out, monkeypatch):
    small = out.with_name("small.gguf")
    made("quantize", "-m", TARGET, "--type", "Q3_K_S", "-o", small)  # its rows of 320 values make most of it Q4_0
    monkeypatch.setattr(quantize, "write", lambda *_: pytest.fail("nothing is to be written"))
    done = draft("quantize", "-m", small, "--type", "Q2_K", "-o", out)
    assert_refused(done, 2, "a copy in Q2_K would have 5.8 MB, and the target has 5.8 MB", "prune")
    assert inside(out.parent) == ["small.gguf"]


def test_what_is_made_is_remembered_and_the_command_that_is_printed_uses_it(out):
    killed = out.with_name(".specdec-12345678")
    killed.mkdir()
    os.utime(killed, (1, 1))
    done = succeeded("draft", "prune", "-m", TARGET, *KEEP, "-o", out)
    assert inside(out.parent) == ["out.gguf"] and drafts.find(TARGET) == out
    command = shlex.split(done.stdout.splitlines()[-1])
    assert command == ["specdec", "run", "-m", str(TARGET), "-md", str(out), "..."]
    assert told(*command[1:-1], "-n", 8, "--json", PROMPT)["draft"] == str(out)


@pytest.mark.slow
def test_what_a_copy_becomes_is_said_before_and_after(out):
    done = succeeded("draft", "quantize", "-m", "demo", "--type", "q3_k", "-o", out, COLUMNS="200")
    assert "24 tensors become Q4_0, because rows of 320 values don't fit Q3_K" in done.stderr
    shown = " ".join(done.stdout.split())
    assert "Q3_K_M by name; of its tensors 24 are Q4_0" in shown and "64% of the target's 9.6 MB" in shown
    assert f'specdec run -p demo -md {out} "..."' in shown


@pytest.mark.slow
def test_a_search(out, tmp_path):
    """Which layers go, and how well the rest agrees, is the machine's rounding."""
    (tmp_path / "prompts.txt").write_text("class Point:\ndef merge(left, right):\nraise ValueError(f\n")
    result = made("prune", "-m", TARGET, "--search", 4, "--prompts", tmp_path / "prompts.txt", "-t", 1, "-o", out)
    whole, *steps = result["search"]
    assert whole["agreement"] > 0.98 and whole["layers"] == list(range(6))
    for before, step in zip(result["search"], steps, strict=False):
        assert step["layers"] == [layer for layer in before["layers"] if layer != step["dropped"]]
    assert steps[-1]["layers"] == result["layers"] and 0.2 < steps[-1]["agreement"] == result["agreement"] < 1


# --- drafting with it --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    path = tmp_path_factory.mktemp("pruned") / "pruned.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(path.parent))
        made("prune", "-m", TARGET, "--keep-layers", "0,2-5", "-o", path)
    return path


@pytest.fixture
def remembered(pruned):
    drafts.remember(TARGET, pruned, "layers 0,2-5 of 6")
    return pruned


@pytest.mark.parametrize("sampling", [(), ("--temp", "0.8", "-s", "3", "--accept", "match")])
def test_the_text_is_the_targets_own(remembered, sampling):
    alone = answer("--drafter", "none", *sampling)
    for drafter, k in (("self", "3"), ("ngram+self", "auto")):
        found = answer("--drafter", drafter, "-k", k, *sampling)
        assert found["tokens"] == alone["tokens"]
        assert (found["drafter"], found["draft"]) == (drafter, str(remembered))
        assert k == "auto" or sampling or found["stats"]["acceptance_rate"] > 0.4


def test_a_draft_that_is_named_counts_more(remembered, out, monkeypatch):
    out.write_bytes(remembered.read_bytes())
    assert answer("-m", TARGET, "-md", out, "--drafter", "self")["draft"] == str(out)
    monkeypatch.setenv("SPECDEC_DRAFTER", "self")
    configure(f"target: {TARGET}\ndraft: {DRAFT}\n")  # for the drafter that it does not name
    assert answer()["draft"] == str(remembered)


def test_no_draft_was_made(tmp_path, remembered):
    drafts.path_of(TARGET).unlink()
    assert_refused(run("--drafter", "self+model", PROMPT), 2, "two draft models")
    spaced = tmp_path / "a target.gguf"
    spaced.symlink_to(TARGET)
    assert_refused(run("-m", spaced, "--drafter", "self", PROMPT), 2, f"specdec draft prune -m '{spaced}' --search N")


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("prune",), ("--keep-layers", "--search")),
        (("prune", *KEEP, "--search", "3"), ("not both",)),
        (("prune", *KEEP, "--prompts", "chat"), ("--prompts is only for --search",)),
        (("prune", "--search", "6"), ("6 of 6", "1 to 5")),
        (("prune", "--search", "4", "-ngl", "-5"), ("gpu-layers cannot be -5",)),
        (("quantize", "--type", "IQ2_XXS"), ("importance matrix", "Q2_K")),
        (("quantize", "--type", "Q2_KK"), ("Q2_KK", "Q2_K")),
        (("quantize", "--type", "MXFP4"), ("only for experts", "Q2_K")),
        (("quantize", "--type", "F16"), ("16 bits", "the target has 8.5", "Q2_K")),
        (("eagle3", "--temps", "warm"), ("'warm' isn't a list of temperatures",)),
        (("eagle3", "--width", "100"), ("cannot have 100 numbers",)),
        (("eagle3", "--minutes", "0"), ("take 0 minutes",)),
        (("eagle3", "-t", "-3"), ("threads cannot be -3",)),
        (("eagle3", "--tokens", "5"), ("5 tokens",)),
        (("eagle3", "--tokens", "2000000000"), ("Use --tokens 1000 to 1000000000.",)),
        (("medusa", "--heads", "0"), ("there cannot be 0 heads",)),
        (("medusa", "-ngl", "-5"), ("gpu-layers cannot be -5",)),
        (("distill", "--from", "scratch", "--depth", "0"), ("cannot have 0 layers",)),
        (("distill", "--from", "scratch", "--words", "-3"), ("a vocabulary of -3 tokens",)),
        (("distill", "--from", "x.gguf", "--words", "9"), ("are only for --from scratch",)),
        (("distill", "--from", "x.gguf", "--depth", "2"), ("are only for --from scratch",)),
    ],
)
def test_what_is_refused(out, args, says):
    assert_refused(draft(*args, "-m", TARGET, "-o", out), 2, *says)
    assert inside(out.parent) == []


def test_prompts_with_answers_too_short(out, tmp_path):
    (tmp_path / "few.txt").write_text("def f(\n")
    done = draft("prune", "-m", TARGET, "--search", 3, "--prompts", tmp_path / "few.txt", "-o", out)
    assert_refused(done, 1, "too few", "--prompts")
    assert inside(out.parent) == []


def test_targets_that_are_not_here(out):
    for name in ("nobody/nothing:Q4_K_M", "qwen3-8b"):
        done = draft("quantize", "-m", name, "--type", "Q2_K", "-o", out)
        assert_refused(done, 4, "specdec pull", name)
    assert_refused(draft("prune", "-m", "none.gguf", *KEEP, "-o", out), 2, "there is no file")
    assert_refused(draft("prune", *KEEP, "-o", out), 2, "no target is named", "-m")


def test_targets_that_no_draft_can_be_made_of(out, tmp_path):
    hybrid = tiny.write(tmp_path / "hybrid.gguf", "qwen35")
    assert_refused(draft("prune", "-m", hybrid, "--keep-layers", "0", "-o", out), 1, "keep a state", "draft quantize")
    (tmp_path / "bare.gguf").write_bytes(ggufs.padded(ggufs.header(), bytes(64)))
    assert_refused(draft("quantize", "-m", tmp_path / "bare.gguf", "--type", "Q2_K", "-o", out), 3, "no tokenizer")
    assert inside(out.parent) == []


def test_a_hybrid_target_can_still_have_fewer_bits(out, tmp_path):
    hybrid = tiny.write(tmp_path / "hybrid.gguf", "nemotron_h")
    made("quantize", "-m", hybrid, "--type", "Q8_0", "-o", out)
    ways = (("--drafter", "none"), ("--drafter", "self", "-k", 3))
    alone, found = (answer("-m", hybrid, *way, "-n", 16, "--raw") for way in ways)
    assert found["tokens"] == alone["tokens"] and found["stats"]["acceptance_rate"] > 0.5


def test_places_for_the_draft(out, tmp_path):
    def refused(place, *says, code=2, target=TARGET, force=("--force",)):
        assert_refused(draft("prune", "-m", target, *KEEP, "-o", place, *force), code, *says)

    refused(tmp_path / "no" / "out.gguf", "no folder")
    refused(out.with_suffix(".bin"), ".gguf")
    refused("/proc/out.gguf", "cannot write to /proc", code=1)
    out.write_bytes(b"precious")
    refused(out, "already exists", "--force", force=())
    assert out.read_bytes() == b"precious"
    (tmp_path / "folder.gguf").mkdir()
    refused(tmp_path / "folder.gguf", "is a folder")
    (tmp_path / "dangling.gguf").symlink_to("nowhere")
    refused(tmp_path / "dangling.gguf", "a broken link")
    target = tmp_path / "target.gguf"
    target.write_bytes(TARGET.read_bytes())
    (tmp_path / "link.gguf").symlink_to(target)
    (tmp_path / "hard.gguf").hardlink_to(target)
    for place in (target, tmp_path / "link.gguf", tmp_path / "hard.gguf"):
        refused(place, "the target itself", target=target)
    assert target.read_bytes() == TARGET.read_bytes()
    made("prune", "-m", target, *KEEP, "-o", out, "--force")
    assert read_header(out).setting("block_count") == 4


def test_too_little_room(out, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 5_000_000})())
    assert_refused(draft("prune", "-m", TARGET, *KEEP, "-o", out), 1, "6.9 MB are needed", "5.0 MB are free")
    assert_refused(draft("prune", "-m", TARGET, "--search", "1", "-o", out), 1, "9.6 MB are needed")
    assert_refused(draft("quantize", "-m", TARGET, "--type", "Q5_0", "-o", out), 1, "6.8 MB are needed")
    assert inside(out.parent) == []


def test_a_copy_that_comes_out_wrong_is_not_kept_and_what_cannot_be_remembered_is_told(out, monkeypatch, tmp_path):
    out.write_bytes(b"precious")
    with monkeypatch.context() as patch:
        patch.setattr(quantize, "write", lambda copy, *_: copy.out.write_bytes(DRAFT.read_bytes()) and [])
        refused = draft("prune", "-m", TARGET, *KEEP, "-o", out, "--force")
    assert_refused(refused, 1, "is wrong: it has 2 layers, ")
    assert out.read_bytes() == b"precious" and inside(out.parent) == ["out.gguf"] and drafts.find(TARGET) is None
    (tmp_path / "config").write_text("no folder")
    assert "name it with -md" in made("prune", "-m", TARGET, *KEEP, "-o", out, "--force")["notes"][0]


@pytest.mark.parametrize(
    ("args", "send", "code"),
    [
        (("quantize", "-m", TARGET, "--type", "IQ3_M"), signal.SIGTERM, 143),
        pytest.param(("prune", "-m", TARGET, "--search", 1), signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_interrupts_leave_nothing_behind(out, args, send, code):
    process = start("draft", *args, "-t", 1, "-o", out)
    wait_until(lambda: list(out.parent.glob(".specdec-*/*.gguf")), process)  # llama.cpp is at work
    process.send_signal(send)
    shown, errors = process.communicate(timeout=20)
    assert process.returncode == code and shown == b"" and b"Traceback" not in errors
    assert errors.decode().endswith("specdec: interrupted; nothing was written\n")
    assert inside(out.parent) == []


# --- training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "exit --layers 2", "distill --from scratch"])
def test_without_pytorch_it_says_what_to_install(kind, monkeypatch, out):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = draft(*kind.split(), "-m", TARGET, "-o", out)
    assert_refused(done, 1, "packages that aren't installed: torch, gguf", 'pip install "specdec-cli[train]"')
    assert inside(out.parent) == []


@pytest.mark.parametrize(
    ("option", "said"), [("--what-if", "there is no hardware 'nosuch'"), ("--against", "neither a file")]
)
def test_what_is_for_the_page_is_looked_for_before_the_work(option, said, monkeypatch, out):
    monkeypatch.setattr("specdec_cli.make_drafts.training_run.require_torch", lambda: None)
    assert_refused(draft("medusa", "-m", TARGET, "-o", out, option, "nosuch"), 2, said)
    assert inside(out.parent) == []


def figures(name, *tokens):
    categories = [CategoryAcceptance(f"kind {i}", 3, 40, (0.5, 0.25, 0.125), each) for i, each in enumerate(tokens)]
    expected = (ExpectedSpeedup("here", 0, 1.0), ExpectedSpeedup("rtx-4090", 3, 1.9))
    return DraftFigures(name, 1, tuple(categories), 0.010, 0.002, expected)


def test_the_page_names_trees(capsys):
    print_parts(draft_making._acceptance([replace(figures("heads.gguf", 1.9), branches=4)]))
    assert "heads.gguf --tree 4 " in capsys.readouterr().out


def test_the_page_compares_before_and_after(snapshot, capsys):
    result = DraftTrainingResult(
        kind="eagle3",
        target="big.gguf",
        out="head.gguf",
        bytes=5_000_000,
        target_bytes=900_000_000,
        texts=400,
        steps=1200,
        agreement=(0.7, 0.6),
        before=figures("small.gguf", 1.9, 2.1),
        after=figures("head.gguf", 2.4, 2.6),
        notes=("the texts are in head.training",),
        seconds=4000.0,
        run='specdec run -m big.gguf -md head.gguf "..."',
    )
    print_parts(training_tables(result))
    snapshot("training.txt", capsys.readouterr().out)
