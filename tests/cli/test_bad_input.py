"""Whatever goes wrong: one line that says what, one that says what to do, the right exit code, nothing lost."""

import json
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import gguf
import ggufs
import numpy as np
import pytest
from typer.testing import CliRunner

from specdec_cli.cli.app import app
from specdec_cli.cli.settings import Settings
from specdec_cli.models.gguf import read_header

DEMO = Path(__file__).parents[2] / "profiles" / "demo"
TARGET, DRAFT = DEMO / "target.gguf", DEMO / "draft.gguf"
SPECDEC = [sys.executable, "-m", "specdec_cli"]
PROMPT = "def f("
ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    """No settings but those of a test, for this process and for those it starts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in [*(f"SPECDEC_{name.upper()}" for name in Settings.__dataclass_fields__), "SPECDEC_PROFILE"]:
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "SPECDEC_DEBUG", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPECDEC_THREADS", "1")  # llama.cpp's threads spin: a busy machine must not slow the tests
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")


def specdec(*args, **options):
    """Run specdec in a process of its own, with pipes for everything."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 30, **options}
    if "input" in options:
        del options["stdin"]
    return subprocess.run([*SPECDEC, *map(str, args)], check=False, **options)


def start(*args, **options):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*SPECDEC, *map(str, args)], **{**pipes, **options})


def run(*args):
    return CliRunner().invoke(app, ["run", *map(str, args)])


def complaint(stderr: str | bytes) -> tuple[str, str]:
    """The two lines of an error: what, and what to do."""
    text = stderr.decode() if isinstance(stderr, bytes) else stderr
    assert "Traceback" not in text
    lines = text.splitlines()
    assert len(lines) == 2, text
    what, do = lines
    assert what.startswith("specdec: ") and len(what) > 15
    assert do.startswith("  ") and len(do) > 10
    return what, do


def assert_refused(result, code: int, *says: str) -> None:
    """In this process: exit code, nothing on stdout, the two lines."""
    assert isinstance(result.exception, SystemExit), result.exception
    what, do = complaint(result.stderr)
    assert result.exit_code == code
    assert result.stdout == ""
    for part in says:
        assert part in f"{what}\n{do}"


# --- models ------------------------------------------------------------------------------------------------------


def bad_file(path: Path, kind: str) -> Path:
    whole = DRAFT.read_bytes()
    contents = {
        "not a GGUF": b"PK\x03\x04" + bytes(1000),
        "empty": b"",
        "cut in the header": whole[:5000],
        "cut in the data": whole[:-1000],
        "too many tensors": ggufs.header(n_tensors=1 << 60) + bytes(1000),
        "too many keys": ggufs.header(n_keys=1 << 60) + bytes(1000),
        "a giant string": ggufs.header([ggufs.key("s", ggufs.STRING, struct.pack("<Q", 1 << 60))]) + bytes(1000),
        "a giant array": ggufs.header([ggufs.key("a", ggufs.ARRAY, ggufs.array(ggufs.STRING, 1 << 60))]) + bytes(1000),
        "version 1": ggufs.header(version=1) + bytes(1000),
        "nothing inside": ggufs.header(),
    }
    path.write_bytes(contents[kind])
    return path


BAD_FILES = {
    "not a GGUF": "not a GGUF",
    "empty": "bad.gguf",
    "cut in the header": "damaged",
    "cut in the data": "cut short",
    "too many tensors": "tensors",
    "too many keys": "keys",
    "a giant string": "one string",
    "a giant array": "in an array",
    "version 1": "version 1",
}


@pytest.mark.parametrize("role", ["-m", "-md"])
@pytest.mark.parametrize(("kind", "says"), BAD_FILES.items())
def test_a_bad_model_file(tmp_path, role, kind, says):
    path = bad_file(tmp_path / "bad.gguf", kind)
    assert_refused(run(PROMPT, "-p", "demo", role, path), 1, says, "bad.gguf")


@pytest.mark.parametrize("role", ["-m", "-md"])
def test_a_missing_model_file(tmp_path, role):
    assert_refused(run(PROMPT, "-p", "demo", role, tmp_path / "none.gguf"), 1, "no file", "none.gguf")


def test_a_folder_for_a_model():
    assert_refused(run(PROMPT, "-m", DEMO, "-md", DRAFT), 1, "folder")


def test_a_header_with_nothing_behind_it(tmp_path):
    path = bad_file(tmp_path / "bad.gguf", "nothing inside")
    assert_refused(run(PROMPT, "-m", path, "--drafter", "none"), 1, "bad.gguf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("llama.block_count", struct.pack("<I", 0)),
        ("llama.block_count", struct.pack("<I", 513)),
        ("llama.block_count", struct.pack("<I", 2**32 - 1)),
        ("llama.embedding_length", struct.pack("<I", 0)),
        ("llama.embedding_length", struct.pack("<I", 2**31 - 1)),
        ("llama.attention.head_count", struct.pack("<I", 0)),
        ("llama.attention.head_count", struct.pack("<I", 2**32 - 1)),
        ("llama.attention.layer_norm_rms_epsilon", struct.pack("<f", -1)),
        ("llama.attention.layer_norm_rms_epsilon", struct.pack("<f", float("nan"))),
    ],
)
def test_absurd_dimensions_do_not_end_the_process(tmp_path, name, value):
    """llama.cpp aborts on some of these, so they must not reach it: hence a process of its own."""
    path = ggufs.with_value(DRAFT, tmp_path / "absurd.gguf", name, value)
    done = specdec("run", PROMPT, "-n", 2, "-q", "--drafter", "none", "-m", path)
    assert (done.returncode, done.stdout) == (1, b""), done.stderr
    assert "absurd.gguf" in complaint(done.stderr)[0]


def test_an_architecture_that_llama_cpp_does_not_know(tmp_path):
    raw = DRAFT.read_bytes()
    name = ggufs.text("llama")
    path = tmp_path / "new.gguf"
    path.write_bytes(raw.replace(name, ggufs.text("ylama"), 1))
    assert_refused(run(PROMPT, "-m", path, "--drafter", "none"), 1, "ylama", "update")


def test_a_file_whose_name_is_not_text(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.gguf")
    path.write_bytes(DRAFT.read_bytes())
    done = specdec("run", PROMPT, "-n", 2, "--drafter", "none", "-q", "-m", path)
    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, b"", True)


def test_a_target_without_a_draft():
    assert_refused(run(PROMPT, "-m", TARGET), 1, "no draft", "-md", "--drafter none")


def test_a_draft_without_a_target():
    assert_refused(run(PROMPT, "-md", DRAFT), 2, "target", "-m")


@pytest.mark.parametrize("tokens", [(300,), (1000, 2000)])
def test_a_draft_with_another_tokenizer(tmp_path, tokens):
    words = read_header(DRAFT).metadata["tokenizer.ggml.tokens"].values
    path = DRAFT
    for token in tokens:
        path = ggufs.with_token(path, tmp_path / f"other{token}.gguf", token, b"~" * len(words[token]))
    text = words[tokens[0]].decode()
    result = run(PROMPT, "-m", TARGET, "-md", path)
    assert_refused(result, 3, f"token {tokens[0]} is {text!r}", f"{'~' * len(words[tokens[0]])!r}", "--drafter none")
    assert f"{len(tokens)} of 4,096" in result.stderr
    assert run(PROMPT, "-m", TARGET, "-md", path, "--drafter", "none", "-n", 1).exit_code == 0


def test_a_draft_larger_than_its_target_runs_with_a_warning():
    result = run(PROMPT, "-m", DRAFT, "-md", TARGET, "-n", 4)
    assert result.exit_code == 0
    assert "larger than the target" in result.stderr
    assert (
        "larger than the target"
        in json.loads(run(PROMPT, "-m", DRAFT, "-md", TARGET, "-n", 4, "--json").stdout)["notes"][0]
    )
    alone = run(PROMPT, "-m", DRAFT, "--drafter", "none", "-n", 4)
    assert (alone.exit_code, alone.stdout) == (0, result.stdout)


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% if %}", "{{ 1 / 0 }}"])
def test_a_model_whose_chat_template_fails(tmp_path, template):
    path = ggufs.with_keys(
        DRAFT, tmp_path / "chat.gguf", ggufs.key("tokenizer.chat_template", ggufs.STRING, ggufs.text(template))
    )
    assert_refused(run(PROMPT, "-m", path, "--drafter", "none"), 1, "chat template", "--raw")
    assert run(PROMPT, "-m", path, "--drafter", "none", "--raw", "-n", 1).exit_code == 0


def test_a_chat_template_is_used(tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    path = ggufs.with_keys(
        DRAFT, tmp_path / "chat.gguf", ggufs.key("tokenizer.chat_template", ggufs.STRING, ggufs.text(template))
    )
    common = ("--drafter", "none", "-n", 8, "--json")
    chat = json.loads(run("hello", "--system", "be brief", "-m", path, *common).stdout)
    same = json.loads(run("system: be brief\nuser: hello\n", "-m", DRAFT, *common).stdout)
    assert (chat["tokens"], chat["prompt_tokens"]) == (same["tokens"], same["prompt_tokens"])


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-n", "0"], "max tokens"),
        (["-n", "-5"], "max tokens"),
        (["-k", "0"], "draft tokens"),
        (["-k", "-1"], "draft tokens"),
        (["--temp", "-0.1"], "temperature"),
        (["--temp", "nan"], "temperature"),
        (["--temp", "inf"], "temperature"),
        (["--top-p", "0"], "top-p"),
        (["--top-p", "-0.5"], "top-p"),
        (["--top-p", "1.01"], "top-p"),
        (["--top-p", "nan"], "top-p"),
        (["--top-k", "-1"], "top-k"),
        (["--min-p", "1.5"], "min-p"),
        (["--min-p", "-0.1"], "min-p"),
        (["--draft-min-p", "1"], "draft-min-p"),
        (["--draft-min-p", "-0.1"], "draft-min-p"),
        (["--repeat-penalty", "0"], "repeat penalty"),
        (["--repeat-last-n", "-1"], "window"),
        (["--frequency-penalty", "inf"], "frequency penalty"),
        (["--presence-penalty", "nan"], "presence penalty"),
        (["--drafter", "magic"], "drafter"),
        (["--accept", "all"], "accept"),
        (["-c", "0"], "ctx"),
        (["-t", "0"], "threads"),
        (["-s", "-1"], "seed"),
        (["--stop", ""], "stop"),
    ],
)
def test_a_senseless_setting(flags, says):
    assert_refused(run(PROMPT, *flags), 2, says)


@pytest.mark.parametrize("flags", [["-k", "many"], ["-n", "1.5"], ["--temp", "hot"], ["--nonsense"], ["a", "b"]])
def test_what_cannot_be_parsed_is_a_usage_error(flags):
    result = run(PROMPT, *flags)
    assert result.exit_code == 2 and result.stdout == "" and "Usage:" in result.stderr


@pytest.mark.parametrize(
    "flags", [["-k", "1000"], ["-t", "600"], ["-ngl", "-5"], ["-s", str(2**63 - 1)], ["--top-k", "9999"]]
)
def test_extreme_settings_run(flags):
    done = specdec("run", PROMPT, "-n", 2, "-q", *flags)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr


@pytest.mark.parametrize(("name", "says"), [("demmo", "'demo'"), ("nonsense", "Profiles: demo"), ("x" * 300, "demo")])
def test_an_unknown_profile(name, says):
    assert_refused(run(PROMPT, "-p", name), 1, "no profile", name, says)


def test_a_context_that_cannot_fit_in_memory():
    assert_refused(run(PROMPT, "-c", 10**9), 1, "1,000,000,000 tokens", "GB", "-c")


def limited(bytes_: int):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))


def test_out_of_memory_for_the_context():
    done = specdec("run", PROMPT, "-n", 2, "-c", 1 << 18, preexec_fn=limited(1 << 30))
    what, do = complaint(done.stderr)
    assert (done.returncode, done.stdout) == (1, b"")
    assert "no room" in what and "-c" in do


def test_out_of_memory_for_the_weights(tmp_path):
    """A target of 5 GB, all holes, where 2 GB may be had."""
    path = tmp_path / "big.gguf"
    write_large(path, 220_000)
    assert path.stat().st_size > 5 * 10**9
    done = specdec("run", PROMPT, "-n", 2, "-m", path, "-md", DRAFT, preexec_fn=limited(2 << 30))
    what, do = complaint(done.stderr)
    assert (done.returncode, done.stdout) == (1, b"")
    assert "big.gguf" in what and "memory" in do


def write_large(path: Path, width: int) -> None:
    """The demo target with a feed-forward layer `width` wide, in F32, whose weights are holes in the file."""
    source, writer = gguf.GGUFReader(TARGET), gguf.GGUFWriter(path, "llama")
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "llama.feed_forward_length"):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    writer.add_feed_forward_length(width)
    narrow = source.fields["llama.feed_forward_length"].contents()
    size = 0
    for tensor in source.tensors:
        shape = [width if side == narrow else int(side) for side in reversed(tensor.shape.tolist())]
        count = 4
        for side in shape:
            count *= side
        writer.add_tensor_info(tensor.name, shape, np.dtype("float32"), count)
        size += -(-count // 32) * 32
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + size)


# --- prompts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", " ", "\n\t\n"])
def test_an_empty_prompt(prompt):
    assert_refused(run(prompt), 2, "empty")


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_prompt_file(tmp_path, content):
    (tmp_path / "p.txt").write_text(content)
    assert_refused(run("-f", tmp_path / "p.txt"), 2, "empty")


def test_an_empty_pipe_prints_help():
    done = specdec("run", input=b"")
    assert done.returncode == 2 and b"Usage: " in done.stdout and b"Traceback" not in done.stderr


@pytest.mark.parametrize("path", ["missing.txt", ".", "x" * 300, "/proc/self/mem"])
def test_an_unreadable_prompt_file(tmp_path, path):
    assert_refused(run("-f", tmp_path / path), 2, "cannot read the prompt file", Path(path).name)


def test_a_prompt_file_that_is_not_utf8(tmp_path):
    (tmp_path / "latin.txt").write_bytes("# café\n".encode("latin-1"))
    assert_refused(run("-f", tmp_path / "latin.txt"), 2, "not UTF-8", "0xe9", "at 5", "iconv")


def test_a_pipe_that_is_not_utf8():
    done = specdec("run", input=b"ab\xff")
    what, do = complaint(done.stderr)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "standard input" in what and "0xff" in what and "iconv" in do


def test_an_argument_that_is_not_utf8():
    done = specdec("run", os.fsdecode(b"def \xff\xfe("), "-n", 2, "-q")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("flags", "says"), [([], "Shorten"), (["-c", "300"], "larger -c"), (["-c", "1024"], "Shorten")]
)
def test_a_prompt_longer_than_the_context(tmp_path, flags, says):
    (tmp_path / "long.txt").write_text("x = 1\n" * 2000)
    assert_refused(run("-f", tmp_path / "long.txt", *flags), 1, "tokens, the context holds", says)


def test_a_context_longer_than_the_training_is_noted_and_used(tmp_path):
    (tmp_path / "long.txt").write_text("x = 1\n" * 500)
    result = json.loads(run("-f", tmp_path / "long.txt", "-c", 4096, "-n", 2, "--json").stdout)
    assert result["prompt_tokens"] > 1024 and result["completion_tokens"] == 2
    assert any("1,024" in note for note in result["notes"])


def test_an_answer_ends_where_the_context_does():
    result = json.loads(run("def f(x):", "-c", 256, "-n", 5000, "--json").stdout)
    assert result["finish_reason"] == "context"
    assert 254 <= result["prompt_tokens"] + result["completion_tokens"] <= 257


def test_argument_file_and_pipe_are_joined(tmp_path):
    (tmp_path / "p.txt").write_text("B = 2\n")
    joined = specdec("run", "A = 1", "-f", tmp_path / "p.txt", "-n", 8, "--json", input=b"C = 3\nD =\n")
    same = run("A = 1\nB = 2\n\nC = 3\nD =", "-n", 8, "--json")
    joined, same = json.loads(joined.stdout), json.loads(same.stdout)
    assert (joined["tokens"], joined["prompt_tokens"]) == (same["tokens"], same["prompt_tokens"])


def test_the_prompt_from_a_pipe_alone():
    piped, given = specdec("run", "-n", 8, "-q", input=b"def f(x):\n"), run("def f(x):", "-n", 8, "-q")
    assert (piped.returncode, piped.stdout.decode()) == (0, given.stdout)


# --- what is written, and where ------------------------------------------------------------------------------------


def test_a_file_holds_only_the_answer(tmp_path):
    with (tmp_path / "out.txt").open("wb") as out:
        done = specdec("run", PROMPT, "-n", 16, capture_output=False, stdout=out, stderr=subprocess.PIPE)
    answer = json.loads(run(PROMPT, "-n", 16, "--json").stdout)["text"]
    assert done.returncode == 0
    assert (tmp_path / "out.txt").read_text() == answer + "\n" * (not answer.endswith("\n"))
    assert b"acceptance" in done.stderr and b"not measured" in done.stderr and ESCAPE.encode() not in done.stderr


def test_quiet_prints_the_answer_alone():
    done = specdec("run", PROMPT, "-n", 8, "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == run(PROMPT, "-n", 8).stdout


JSON_KEYS = {
    "": "text tokens finish_reason prompt_tokens completion_tokens target draft drafter accept draft_tokens seed "
    "stats timing baseline speedup",
    "stats": "steps drafted accepted emitted acceptance_rate tokens_per_step per_position histogram",
    "timing": "load_s prefill_s ttft_s decode_s tokens_per_s tpot_ms draft_s verify_s sample_s overhead_s",
    "baseline": "method tokens_per_s identical first_divergence",
}


def test_json_is_one_object_with_the_keys_of_the_contract():
    done = specdec("run", PROMPT, "-n", 12, "--json", "--baseline", "-s", 5)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    found = json.loads(done.stdout)
    assert set(found) - {"notes"} == set(JSON_KEYS[""].split())
    for part in ("stats", "timing", "baseline"):
        assert set(found[part]) == set(JSON_KEYS[part].split())
    assert (found["seed"], found["drafter"], found["accept"], found["draft_tokens"]) == (5, "model", "rejection", 3)
    assert (found["finish_reason"], found["completion_tokens"], len(found["tokens"])) == ("length", 12, 12)
    assert (found["target"], found["draft"]) == (str(TARGET), str(DRAFT))
    assert found["baseline"]["method"] == "measured" and isinstance(found["baseline"]["identical"], bool)
    assert found["speedup"] == pytest.approx(found["timing"]["tokens_per_s"] / found["baseline"]["tokens_per_s"])
    assert found["stats"]["emitted"] == 12 and found["stats"]["accepted"] <= found["stats"]["drafted"]


def test_json_without_a_draft_or_a_baseline():
    found = json.loads(run(PROMPT, "-n", 1, "--json", "--drafter", "none").stdout)
    assert set(found) - {"notes"} == set(JSON_KEYS[""].split())
    assert (found["draft"], found["baseline"], found["speedup"]) == (None, None, None)
    assert (found["drafter"], found["stats"]["acceptance_rate"], found["timing"]["tokens_per_s"]) == (
        "none",
        None,
        None,
    )


def test_a_stop_string_ends_the_answer():
    found = json.loads(run("def f(", "-n", 64, "--json", "--stop", "return").stdout)
    assert found["finish_reason"] == "stop_string" and "return" not in found["text"]


def test_a_trace_is_json_lines(tmp_path):
    path = tmp_path / "trace.jsonl"
    result = run(PROMPT, "-n", 12, "--trace", path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines[:3]] == ["run", "prefill", "step"] and lines[-1]["event"] == "done"
    text = "".join(token["text"] for line in lines if line["event"] == "step" for token in line["tokens"])
    assert (text + lines[-1]["tail"]).rstrip("\n") == result.stdout.rstrip("\n")


@pytest.mark.parametrize("path", ["no/such/folder/t.jsonl", "."])
def test_a_trace_that_cannot_be_written(tmp_path, path):
    assert_refused(run(PROMPT, "-n", 2, "--trace", tmp_path / path), 2, "cannot write")


@pytest.mark.parametrize("flags", [[], ["-q"], ["--json"], ["--trace", "/dev/full"]])
def test_a_full_disk(flags):
    with Path("/dev/full").open("wb") as full:
        out = subprocess.PIPE if "--trace" in flags else full
        done = specdec("run", PROMPT, "-n", 4, *flags, capture_output=False, stdout=out, stderr=subprocess.PIPE)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 1 and b"specdec: " in done.stderr and b"No space left" in done.stderr


@pytest.mark.parametrize("flags", [[], ["-q"], ["--json"]])
def test_a_pipe_closed_before_anything_is_read(flags):
    process = start("run", PROMPT, "-n", 64, *flags)
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait(30) in (0, 141) and "Traceback" not in errors and "Exception ignored" not in errors


def test_head():
    """`specdec run ... | head -1`."""
    process = start("run", "def f(x):", "-c", 16384, "-n", 16000)
    first = process.stdout.readline()
    process.stdout.close()
    started = time.monotonic()
    errors = process.stderr.read().decode()
    assert process.wait(30) in (0, 141) and time.monotonic() - started < 5
    assert first and "Traceback" not in errors and "Exception ignored" not in errors


@pytest.mark.parametrize(("stream", "code"), [("<&-", 0), ("2>&-", 0), (">&-", 0)])
def test_a_closed_stream(stream, code):
    command = f'exec "$@" {stream}'
    args = ["bash", "-c", command, "bash", *SPECDEC, "run", PROMPT, "-n", "4"]
    done = subprocess.run(args, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in done.stderr and done.returncode == code


# --- terminals ---------------------------------------------------------------------------------------------------


def read_terminal(main: int, until: bytes | None = None, seconds: float = 20) -> bytes:
    """What appears on a pseudo-terminal until it is closed, or until some text is there."""
    seen, deadline = b"", time.monotonic() + seconds
    while until is None or until not in seen:
        assert select.select([main], [], [], max(deadline - time.monotonic(), 0))[0], f"hangs after {seen!r}"
        try:
            piece = os.read(main, 65536)
        except OSError:  # the other side has been closed
            break
        if not piece:
            break
        seen += piece
    return seen


def on_terminal(*args, **environment: str) -> tuple[int, str]:
    """Run with a terminal for all three streams."""
    main, side = pty.openpty()
    process = start(*args, stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm", **environment})
    os.close(side)
    try:
        return (seen := read_terminal(main)) is None or process.wait(20), seen.decode()
    finally:
        process.kill()
        os.close(main)


def test_no_prompt_on_a_terminal_prints_help():
    code, screen = on_terminal("run", NO_COLOR="1")
    screen = unstyled(screen)
    assert (
        code == 2
        and re.search(r"Usage: .* run \[OPTIONS\]", screen)
        and "--draft-tokens" in screen
        and "Traceback" not in screen
    )


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def colours(text: str) -> list[str]:
    """The colours (30-37, 90-97, 38) among a text's styles."""
    codes = [code for run in re.findall(r"\x1b\[([\d;]*)m", text) for code in run.split(";")]
    return [code for code in codes if re.fullmatch(r"[39]\d", code)]


def test_a_terminal_shows_the_live_view():
    code, screen = on_terminal("run", PROMPT, "-n", 16)
    assert code == 0 and colours(screen) and "accepted" in screen and "acceptance" in screen
    assert "tokens/s" in screen and "Traceback" not in screen


def test_no_color_is_obeyed():
    code, screen = on_terminal("run", PROMPT, "-n", 16, NO_COLOR="1")
    assert code == 0 and not colours(screen)
    assert f"{ESCAPE}[1m" in screen and f"{ESCAPE}[4m" in screen  # corrections and bonus tokens are told apart still


def test_no_color_wins_over_force_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = specdec("run", PROMPT, "-n", 16)
    assert done.returncode == 0 and not colours(done.stdout.decode() + done.stderr.decode())


def test_a_dumb_terminal_gets_plain_text():
    code, screen = on_terminal("run", PROMPT, "-n", 16, TERM="dumb")
    assert code == 0 and "acceptance" in screen
    assert ESCAPE not in screen


def test_force_color_colours_a_pipe(monkeypatch):
    plain = specdec("run", PROMPT, "-n", 16).stdout.decode()
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = specdec("run", PROMPT, "-n", 16)
    coloured = done.stdout.decode()
    assert colours(coloured) and unstyled(coloured) == plain


def test_force_color_does_not_animate_a_pipe(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    errors = specdec("run", PROMPT, "-n", 4).stderr.decode()
    assert "\r" not in errors and not re.search(r"\x1b\[[\d;?]*[^\dm;?]", errors)


def test_quiet_on_a_terminal():
    code, screen = on_terminal("run", PROMPT, "-n", 8, "-q")
    assert (code, screen.replace("\r\n", "\n")) == (0, run(PROMPT, "-n", 8, "-q").stdout)


# --- Ctrl-C ------------------------------------------------------------------------------------------------------


def interrupt(process, send: int = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal; the exit code, and what was still written. The 0.3 s allowed, plus the process's own end."""
    started = time.monotonic()
    process.send_signal(send)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 1.0
    assert b"Traceback" not in err and b"KeyboardInterrupt" not in err
    return process.returncode, out.decode(), err.decode()


def wait_for(process, condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize("delay", [0, 0.005, 0.02])
def test_interrupted_while_loading(delay):
    main, side = pty.openpty()
    try:
        process = start("run", PROMPT * 500, "-n", 1000, "-c", 8192, stderr=side, env={**os.environ, "TERM": "xterm"})
        os.close(side)
        read_terminal(main, until=b"loading")
        time.sleep(delay)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        errors = read_terminal(main).decode()
        assert process.wait(20) == 130 and time.monotonic() - started < 1.0
        assert "Traceback" not in errors and "interrupted" in errors
    finally:
        process.kill()
        process.stdout.close()
        os.close(main)


def test_interrupted_in_a_long_prefill(tmp_path):
    """Reading this prompt takes half a minute; loading the models, a fraction of a second."""
    (tmp_path / "long.txt").write_text("def f(x): return x + 1\n" * 2500)
    process = start("run", "-f", tmp_path / "long.txt", "-c", 32768, "--trace", tmp_path / "trace.jsonl")
    wait_for(process, (tmp_path / "trace.jsonl").exists)
    time.sleep(2)
    code, out, err = interrupt(process)
    assert (code, out.strip()) == (130, "")
    assert "interrupted after 0 tokens" in err and "memory" in err
    assert [json.loads(line)["event"] for line in (tmp_path / "trace.jsonl").read_text().splitlines()] == [
        "run",
        "done",
    ]


@pytest.mark.parametrize(("send", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_while_decoding(tmp_path, send, expected):
    trace = tmp_path / "trace.jsonl"
    process = start("run", "def f(x):", "-c", 16384, "-n", 16000, "--trace", trace)
    first = b""
    while len(first) < 200:
        first += os.read(process.stdout.fileno(), 200 - len(first))
    code, rest, err = interrupt(process, send)
    assert code == expected
    steps = [line for line in map(json.loads, trace.read_text().splitlines()) if line["event"] == "step"]
    text = "".join(token["text"] for step in steps for token in step["tokens"])
    assert len(steps) > 5 and (first.decode() + rest).rstrip("\n") == text.rstrip("\n")
    assert f"interrupted after {sum(len(step['tokens']) for step in steps)} tokens" in err and "acceptance" in err


def test_interrupted_with_json_gives_the_partial_object(tmp_path):
    trace = tmp_path / "trace.jsonl"
    process = start("run", "def f(x):", "-c", 16384, "-n", 16000, "--json", "--trace", trace)
    wait_for(
        process, lambda: trace.exists() and trace.stat().st_size > 0
    )  # the first steps have been buffered and written
    code, out, err = interrupt(process)
    found = json.loads(out)
    assert (code, err, found["finish_reason"]) == (130, "", "interrupted")
    assert found["completion_tokens"] == len(found["tokens"]) > 0 and found["text"]


def test_interrupted_in_the_live_view_leaves_the_terminal_as_it_was():
    main, side = pty.openpty()
    process = start(
        "run", "def f(x):", "-c", 16384, "-n", 16000, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm"}
    )
    os.close(side)
    try:
        read_terminal(main, until=b"tokens/s")
        process.send_signal(signal.SIGINT)
        rest = read_terminal(main).decode()
        assert process.wait(20) == 130
        assert "interrupted after" in rest and "Traceback" not in rest
        for private in re.findall(r"\x1b\[\?(\d+)h", rest):  # every mode that was set is reset
            assert rest.rfind(f"{ESCAPE}[?{private}l") > rest.rfind(f"{ESCAPE}[?{private}h")
        assert f"{ESCAPE}[?25l" not in rest and f"{ESCAPE}[?1049h" not in rest
    finally:
        process.kill()
        os.close(main)


# --- the rest of the command line ----------------------------------------------------------------------------------


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    done = specdec("run", PROMPT, "-m", "none.gguf", "-md", "none.gguf")
    assert done.returncode == 1 and b"Traceback" in done.stderr and b"none.gguf" in done.stderr


def test_doctor():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0 and result.stderr == ""
    for part in ("llama-cpp-python", "build", "CPU", "weights", "profiles", "bundled pair", "works"):
        assert part in result.stdout


def test_doctor_json():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["bundled_pair"]["ok"] is True
    assert {"versions", "build", "devices", "gpu_offload", "threads", "weights_cache", "unused_gpu"} <= set(found)
    assert any(device["kind"] == "CPU" and device["total"] > 0 for device in found["devices"])
    assert "demo" in found["profiles"]


def test_help_lists_the_commands_and_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['specdec', '--help']\n"
        "from specdec_cli.cli import app\n"
        "heavy = {'numpy', 'llama_cpp', 'huggingface_hub', 'jinja2', 'yaml'}\n"
        "print('after import:', heavy & set(sys.modules))\n"
        "try: app.app()\n"
        "finally: print('after help:', heavy & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "after import: set()" in done.stdout and "after help: set()" in done.stdout
    assert "run" in done.stdout and "doctor" in done.stdout and "Usage: specdec" in done.stdout


@pytest.mark.parametrize("command", [["--help"], ["-h"], ["run", "--help"], ["doctor", "-h"]])
def test_help_of_every_command(command):
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "Usage:" in result.stdout and result.stderr == ""


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and re.fullmatch(r"specdec \d+\.\d+\S*\n", result.stdout)
