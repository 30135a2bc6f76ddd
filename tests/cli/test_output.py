"""What is written, and where: streams, terminals, formats."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driver import (
    DRAFT,
    ESCAPE,
    PROMPT,
    SPECDEC,
    TARGET,
    assert_refused,
    read_terminal,
    run,
    specdec,
    start,
)
from typer.testing import CliRunner

from specdec_cli.cli.app import app

# --- what is written, and where ------------------------------------------------------------------------------------


def test_a_file_holds_only_the_answer(tmp_path):
    with (tmp_path / "out.txt").open("wb") as out:
        done = specdec("run", PROMPT, "-n", 16, "-k", 3, capture_output=False, stdout=out, stderr=subprocess.PIPE)
    answer = json.loads(run(PROMPT, "-n", 16, "-k", 3, "--json").stdout)["text"]
    assert done.returncode == 0
    assert (tmp_path / "out.txt").read_text() == answer + "\n" * (not answer.endswith("\n"))
    assert b"acceptance" in done.stderr and b"not measured" in done.stderr and ESCAPE.encode() not in done.stderr


def test_quiet_prints_the_answer_alone():
    done = specdec("run", PROMPT, "-n", 8, "-k", 3, "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == run(PROMPT, "-n", 8, "-k", 3).stdout


JSON_KEYS = {
    "": "text tokens finish_reason prompt_tokens completion_tokens target draft draft_small drafter accept bitwise "
    "lossless draft_tokens draft_min_p tree lookahead ngram_corpus temp top_k top_p min_p repeat_penalty "
    "frequency_penalty presence_penalty repeat_last_n max_tokens ctx seed stats timing rounding baseline speedup",
    "stats": "steps drafted accepted emitted acceptance_rate tokens_per_step per_position histogram lengths "
    "distance_per_token sources",
    "timing": "load_s measuring_s prefill_s ttft_s decode_s tokens_per_s tpot_ms draft_s verify_s sample_s overhead_s",
    "baseline": "method tokens_per_s identical first_divergence",
}


@pytest.mark.parametrize(("flags", "draft_tokens"), [([], "auto"), (["-k", 3], 3)])
def test_json_is_one_object_with_the_keys_of_the_contract(flags, draft_tokens):
    done = specdec("run", PROMPT, "-n", 12, "--json", "--baseline", "-s", 5, *flags)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    found = json.loads(done.stdout)
    assert set(found) - {"notes"} == set(JSON_KEYS[""].split())
    for part in ("stats", "timing", "baseline"):
        assert set(found[part]) == set(JSON_KEYS[part].split())
    assert (found["seed"], found["drafter"], found["accept"]) == (5, "model", "coupled")
    assert found["draft_tokens"] == draft_tokens
    assert [found[name] for name in ("draft_small", "draft_min_p", "tree", "lookahead", "temp")] == [
        None,
        0,
        1,
        None,
        0,
    ]
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
    assert {"temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "ctx"} <= set(lines[0])
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
    code, screen = on_terminal("run", PROMPT, "-n", 16, "-k", 3)
    assert code == 0 and colours(screen) and "accepted" in screen and "acceptance" in screen
    assert "tokens/s" in screen and "Traceback" not in screen


def test_no_color_is_obeyed():
    code, screen = on_terminal("run", PROMPT, "-n", 16, "-k", 3, NO_COLOR="1")
    assert code == 0 and not colours(screen)
    assert f"{ESCAPE}[1m" in screen and f"{ESCAPE}[4m" in screen  # corrections and bonus tokens are told apart still


def test_no_color_wins_over_force_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = specdec("run", PROMPT, "-n", 16, "-k", 3)
    assert done.returncode == 0 and not colours(done.stdout.decode() + done.stderr.decode())


def test_a_dumb_terminal_gets_plain_text():
    code, screen = on_terminal("run", PROMPT, "-n", 16, "-k", 3, TERM="dumb")
    assert code == 0 and "acceptance" in screen
    assert ESCAPE not in screen


def test_force_color_colours_a_pipe(monkeypatch):
    plain = specdec("run", PROMPT, "-n", 16, "-k", 3).stdout.decode()
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = specdec("run", PROMPT, "-n", 16, "-k", 3)
    coloured = done.stdout.decode()
    assert colours(coloured) and unstyled(coloured) == plain


def test_force_color_does_not_animate_a_pipe(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    errors = specdec("run", PROMPT, "-n", 4).stderr.decode()
    assert "\r" not in errors and not re.search(r"\x1b\[[\d;?]*[^\dm;?]", errors)


def test_quiet_on_a_terminal():
    code, screen = on_terminal("run", PROMPT, "-n", 8, "-k", 3, "-q")
    assert (code, screen.replace("\r\n", "\n")) == (0, run(PROMPT, "-n", 8, "-k", 3, "-q").stdout)


# --- the rest of the command line ----------------------------------------------------------------------------------


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    done = specdec("run", PROMPT, "-m", "none.gguf", "-md", "none.gguf")
    assert done.returncode == 1 and b"Traceback" in done.stderr and b"none.gguf" in done.stderr


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
