"""`specdec draft`, and `--drafter self` with what it made."""

import json
import resource
import shlex
import signal
from functools import partial

import ggufs
import pytest
import tiny
from driver import DRAFT, PROMPT, TARGET, assert_refused, call, configure, run, specdec, start, succeeded, told
from hub_pairs import wait_until
from terminal import Terminal

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import read_header
from specdec_cli.llama import quantize
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
def test_what_is_made_is_remembered(out):
    """What is printed is a golden of `test_pair_commands.py`."""
    found = made("prune", "-m", TARGET, "--keep-layers", "0-2,5", "-o", out)
    assert found["bytes"] == out.stat().st_size < found["target_bytes"] == TARGET.stat().st_size
    assert read_header(out).setting("block_count") == 4
    assert inside(out.parent) == ["out.gguf"] and drafts.find(TARGET) == out
    made("quantize", "-m", TARGET, "--type", "q3_k", "-o", out, "--force")
    assert read_header(out).quantisation == "Q3_K_M" and inside(out.parent) == ["out.gguf"]


def test_a_type_that_gains_nothing_is_refused(out):
    for type_, bits in (("F16", "16 bits"), ("q8_0", "8.5 bits")):
        done = draft("quantize", "-m", TARGET, "--type", type_, "-o", out)
        assert_refused(done, 2, bits, "the target has 8.5", "Q2_K")
        assert "F16" not in done.stderr.splitlines()[1] and inside(out.parent) == []


@pytest.mark.slow
def test_what_a_type_does_not_fit_is_said_before_the_copy_is_made(out, monkeypatch):
    small = out.with_name("small.gguf")
    made("quantize", "-m", TARGET, "--type", "Q3_K_S", "-o", small)  # its rows of 320 values make most of it Q4_0
    with monkeypatch.context() as patch:
        patch.setattr(quantize, "write", lambda *_: pytest.fail("nothing is to be written"))
        done = draft("quantize", "-m", small, "--type", "Q2_K", "-o", out, "--force")
        assert_refused(done, 2, "a copy in Q2_K would have 5.8 MB, and the target has 5.8 MB", "prune")
        patch.setattr(quantize, "write", lambda *_: (_ for _ in ()).throw(SpecdecError("written")))
        said = draft("quantize", "-m", TARGET, "--type", "Q2_K", "-o", out).stderr.splitlines()
    assert said[0] == "42 tensors become Q4_0, because rows of 320 or 896 values don't fit Q2_K or Q3_K"
    assert said[1] == "the copy will have 5.8 MB, 60% of the target's 9.6 MB" and "written" in said[2]


def test_the_command_that_is_printed_uses_the_file(out):
    done = succeeded("draft", "prune", "-m", TARGET, *KEEP, "-o", out)
    command = shlex.split(done.stdout.splitlines()[-1])
    assert command == ["specdec", "run", "-m", str(TARGET), "-md", str(out), "..."]
    assert told(*command[1:-1], "-n", 8, "--json", PROMPT)["draft"] == str(out)


def test_without_a_target(out):
    assert_refused(draft("prune", *KEEP, "-o", out), 2, "no target is named", "-m")


@pytest.mark.slow
def test_progress_on_a_terminal(out):
    with Terminal("draft", "prune", "-m", TARGET, *KEEP, "-o", out) as terminal:
        assert terminal.ended() == 0
        shown = terminal.raw.decode()
        assert all(part in shown for part in ("writing out.gguf", "0/38", "tensors"))


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
    assert answer("-m", TARGET)["draft"] == str(remembered)
    configure(f"target: {TARGET}\ndraft: {DRAFT}\n")  # for the drafter that it does not name
    assert answer()["draft"] == str(remembered)
    monkeypatch.delenv("SPECDEC_DRAFTER")
    assert answer()["draft"] == str(DRAFT)
    configure(f"target: {TARGET}\ndraft: {out}\ndrafter: self\n")
    assert answer()["draft"] == str(out)


def test_no_draft_was_made(tmp_path, remembered):
    drafts.path_of(TARGET).unlink()
    for drafter in ("self", "ngram+self"):
        assert_refused(run("--drafter", drafter, PROMPT), 2, "no draft has been made", "specdec draft prune", "-md")
    assert_refused(run("--drafter", "self+model", PROMPT), 2, "two draft models")
    spaced = tmp_path / "a target.gguf"
    spaced.symlink_to(TARGET)
    assert_refused(run("-m", spaced, "--drafter", "self", PROMPT), 2, f"specdec draft prune -m '{spaced}' --search N")


def test_compare(remembered):
    few = ("--json", "-n", 12, "--repeat", 1, "--limit", 1)
    done = succeeded("compare", "--drafter", "none", "--vs", "drafter=self,k=2", "--vs", "drafter=ngram", *few)
    assert json.loads(done.stdout)["divergences"] == [] and "pruned.gguf" in done.stdout
    succeeded("compare", "-m", TARGET, "-md", remembered, "--vs", "drafter=self", *few)
    assert_refused(
        call("compare", "--drafter", "self", "--vs", "drafter=model", *few), 2, "two draft models", "--against"
    )


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), ("--keep-layers", "--search")),
        ((*KEEP, "--search", "3"), ("not both",)),
        ((*KEEP, "--prompts", "chat"), ("--prompts is only for --search",)),
        (("--search", "3", "--prompts", "nothing"), ("nothing", "Suites")),
        (("--keep-layers", "7-3"), ("backwards", "3-7")),
        (("--keep-layers", "0-5"), ("all 6 layers",)),
        (("--search", "6"), ("6 of 6", "1 to 5")),
        ((*KEEP, "-t", "0"), ("threads",)),
        (("--type", "IQ2_XXS"), ("importance matrix", "Q2_K")),
        (("--type", "Q2_KK"), ("Q2_KK", "Q2_K")),
        (("--type", ""), ("no type",)),
    ],
)
def test_what_is_refused(out, args, says):
    kind = "quantize" if "--type" in args else "prune"
    assert_refused(draft(kind, "-m", TARGET, *args, "-o", out), 2, *says)
    assert inside(out.parent) == []


def test_prompts_with_answers_too_short(out, tmp_path):
    (tmp_path / "few.txt").write_text("def f(\n")
    done = draft("prune", "-m", TARGET, "--search", 3, "--prompts", tmp_path / "few.txt", "-o", out)
    assert_refused(done, 1, "too few", "--prompts")
    assert inside(out.parent) == []


def test_targets_that_are_not_here(out, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for name, code, says in (
        ("none.gguf", 2, "no file none.gguf"),
        ("nobody/nothing:Q4_K_M", 4, "specdec pull --target nobody/nothing:Q4_K_M"),
        ("qwen3-8b", 4, "specdec pull qwen3-8b"),
    ):
        for command in (("prune", "-m", name, *KEEP), ("quantize", "-m", name, "--type", "Q2_K")):
            assert_refused(draft(*command, "-o", out), code, says)


def test_targets_that_no_draft_can_be_made_of(out, tmp_path):
    hybrid = tiny.write(tmp_path / "hybrid.gguf", "qwen35")
    assert_refused(draft("prune", "-m", hybrid, "--keep-layers", "0", "-o", out), 1, "keep a state", "draft quantize")
    (tmp_path / "cut.gguf").write_bytes(TARGET.read_bytes()[:100_000])
    assert_refused(draft("prune", "-m", tmp_path / "cut.gguf", *KEEP, "-o", out), 1, "damaged")
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
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 5_000_000})())
        assert_refused(draft("prune", "-m", TARGET, *KEEP, "-o", out), 1, "6.9 MB are needed", "5.0 MB are free")
        assert_refused(draft("prune", "-m", TARGET, "--search", "1", "-o", out), 1, "9.6 MB are needed")
        assert_refused(draft("quantize", "-m", TARGET, "--type", "Q5_0", "-o", out), 1, "6.8 MB are needed")
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
    done = specdec("draft", "prune", "-m", TARGET, *KEEP, "-o", out, preexec_fn=limit)
    assert_refused(done, 1, "no room for out.gguf")
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
