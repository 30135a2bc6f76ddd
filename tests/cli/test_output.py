"""What is written, and where: streams, terminals, formats."""

import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest
from devices import device
from driver import ESCAPE, PROMPT, SPECDEC, assert_refused, run, specdec, start, succeeded, told
from terminal import Terminal

from specdec_cli.cli.app import COMMANDS, load
from specdec_cli.cli.output import print_parts
from specdec_cli.display import terminal
from specdec_cli.engine.contexts import Contexts

SHORT = ("run", PROMPT, "-n", 12, "-k", 3)


def but_first(first, *others):
    """One case always, the others where there is time."""
    return [first, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


def test_what_json_says_of_a_baseline():
    """The keys of an answer, and what they say of it: tests/cli/unchanged."""
    found = told("run", PROMPT, "-n", 12, "--baseline", "-s", 5, "-k", 3)
    keys = "method tokens_per_s drafted_tokens_per_s speedup identical first_divergence"
    assert set(found["baseline"]) == set(keys.split())
    assert found["baseline"]["method"] == "measured" and isinstance(found["baseline"]["identical"], bool)
    paired = found["baseline"]["speedup"]
    assert paired["low"] <= paired["mean"] <= paired["high"] and paired["count"] >= 3
    drafted, alone = found["baseline"]["drafted_tokens_per_s"], found["baseline"]["tokens_per_s"]
    assert drafted / alone == pytest.approx(paired["mean"])
    assert found["speedup"] == (paired["mean"] if paired["difference"] in ("faster", "slower") else None)
    bare = told("run", PROMPT, "-n", 1, "--drafter", "none")
    figures = (bare["stats"]["acceptance_rate"], bare["timing"]["tokens_per_s"])
    assert (bare["draft"], bare["baseline"], bare["speedup"], *figures) == (None,) * 5


@pytest.mark.parametrize("flags", but_first(["--json"], [], ["--trace"]))
def test_a_full_disk(flags, tmp_path):
    with (path := device(tmp_path, "full")).open("wb") as full:
        out, file = (subprocess.PIPE, [path]) if "--trace" in flags else (full, [])
        done = specdec("run", PROMPT, "-n", 4, *flags, *file, capture_output=False, stdout=out, stderr=subprocess.PIPE)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 1 and b"specdec: " in done.stderr and b"No space left" in done.stderr


@pytest.mark.parametrize(
    ("flags", "lines"),
    [([], 1), pytest.param([], 0, marks=pytest.mark.slow), pytest.param(["--json"], 0, marks=pytest.mark.slow)],
)
def test_a_reader_that_goes_away(flags, lines):
    """`specdec run ... | head -1`, and a pipe closed before anything is read."""
    process = start("run", "def f(x):", "-c", 16384, "-n", 64 if "--json" in flags else 16000, *flags)
    assert all(process.stdout.readline() for _ in range(lines))
    process.stdout.close()
    started = time.monotonic()
    errors = process.stderr.read().decode()
    assert process.wait(30) in (0, 141) and (not lines or time.monotonic() - started < 10)
    assert "Traceback" not in errors and "Exception ignored" not in errors


@pytest.mark.parametrize("uncut", [False, True])
@pytest.mark.parametrize(("stream", "ends"), [("stdout", pytest.raises(BrokenPipeError)), ("stderr", nullcontext())])
def test_tables_end_without_a_reader_of_stdout_alone(monkeypatch, stream, ends, uncut):
    """Not with Rich's exit code 1."""
    read, write = os.pipe()
    os.close(read)
    with ends, os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, stream, unread)
        print_parts("a", stderr=stream == "stderr", uncut=uncut)


def test_the_bar_of_a_prompt_that_is_not_read_to_its_end_is_erased(monkeypatch):
    monkeypatch.setattr(terminal, "can_paint", lambda _: True)
    monkeypatch.setattr(terminal.ReadingBar, "line", lambda _, what, *__: what and "the bar")
    shown = succeeded("run", PROMPT * 300, "-n", 1, "-c", 2048).stderr
    assert "the bar" in shown and "\x1b[K" in shown.rpartition("the bar")[2]


def test_a_report_has_few_lines_besides_its_bars_and_says_that_the_machine_is_busy(monkeypatch):
    """What else it says: tests/display/test_plain.py."""
    opened = Contexts.open

    def busy(self, *args):
        opened(self, *args)
        self.target.threads, self.target.loaded = 1, replace(self.target.loaded, threads=2)
        self._note_threads()

    monkeypatch.setattr(Contexts, "open", busy)
    lines = succeeded("run", PROMPT, "-n", 24, "-k", 3, "--baseline", COLUMNS="80").stderr.splitlines()
    lines = [line for line in lines if "tokens/s \u2588" not in line]
    assert len(lines) <= 3 and "note: CPU busy: using 1 thread (-t sets it)" in lines
    assert all(part in "\n".join(lines) for part in ("draft tokens kept", "text", "stopped at -n 24"))


@pytest.mark.parametrize("stream", but_first(">&-", "<&-", "2>&-"))
def test_a_closed_stream(stream):
    args = ["bash", "-c", f'exec "$@" {stream}', "bash", *SPECDEC, "run", PROMPT, "-n", "4"]
    done = subprocess.run(args, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in done.stderr and done.returncode == 0


def test_a_command_that_would_ask_has_no_stdin():
    args = ["bash", "-c", 'exec "$@" <&-', "bash", *SPECDEC, "pull", "nobody"]
    done = subprocess.run(args, capture_output=True, timeout=30, check=False)
    assert_refused(done, 2, "nobody")


# --- terminals and colours -----------------------------------------------------------------------------------------


def on_terminal(*args, **environment: str) -> tuple[int, str]:
    """Run with a terminal for all three streams."""
    with Terminal(*args, env=environment) as terminal:
        return terminal.ended(), terminal.raw.decode()


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def colours(text: str) -> list[str]:
    """The colours (30-37, 90-97, 38) among a text's styles."""
    codes = [code for styles in re.findall(r"\x1b\[([\d;]*)m", text) for code in styles.split(";")]
    return [code for code in codes if re.fullmatch(r"[39]\d", code)]


@pytest.mark.slow
def test_no_color_is_obeyed():
    code, screen = on_terminal(*SHORT, NO_COLOR="1")
    assert code == 0 and not colours(screen)
    assert f"{ESCAPE}[1m" in screen and f"{ESCAPE}[4m" in screen  # corrections and bonus tokens are told apart still


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_text():
    code, screen = on_terminal(*SHORT, TERM="dumb")
    assert code == 0 and "kept" in screen and ESCAPE not in screen


def test_a_pipe_gets_the_answer_alone_and_colours_if_they_are_forced_and_no_animation():
    plain, quiet, coloured = succeeded(*SHORT), succeeded(*SHORT, "-q"), succeeded(*SHORT, FORCE_COLOR="1")
    assert plain.stdout == told(*SHORT)["text"].removesuffix("\n") + "\n"
    assert "kept" in plain.stderr and "not measured" in plain.stderr and ESCAPE not in plain.stderr
    assert (quiet.stderr, quiet.stdout) == ("", plain.stdout)
    assert colours(coloured.stdout) and unstyled(coloured.stdout) == plain.stdout
    assert "\r" not in coloured.stderr and not re.search(r"\x1b\[[\d;?]*[^\dm;?]", coloured.stderr)
    neither = succeeded(*SHORT, FORCE_COLOR="1", NO_COLOR="1")
    assert not colours(neither.stdout + neither.stderr), "NO_COLOR counts for more"


# --- the rest of the command line ----------------------------------------------------------------------------------


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    done = run(PROMPT, "-m", "none.gguf", "-md", "none.gguf")
    assert done.exit_code == 2 and "Traceback" in done.stderr and "\nspecdec: there is no file none.gguf" in done.stderr


def test_help_lists_the_commands_and_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['specdec', '--help']\n"
        "from specdec_cli.cli import app\n"
        "heavy = {'specdec_cli.cli.run', 'numpy', 'llama_cpp', 'huggingface_hub', 'jinja2', 'yaml'}\n"
        "print('after import:', heavy & set(sys.modules))\n"
        "try: app.app()\n"
        "finally: print('after help:', heavy & set(sys.modules))\n"
    )
    odd = {**os.environ, "TERMINAL_WIDTH": "wide"}
    done = subprocess.run([sys.executable, "-c", code], env=odd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "after import: set()" in done.stdout and "after help: set()" in done.stdout
    assert "run" in done.stdout and "doctor" in done.stdout and "Usage: specdec" in done.stdout


def test_help_lists_each_command_with_its_own_first_line():
    for name, line in COMMANDS.items():
        assert load(name).help.split("\n\n")[0].replace("\n", " ") == line


def test_help_and_version():
    for command in (["-h"], ["run", "--help"], ["draft", "prune", "-h"]):
        result = succeeded(*command)
        assert "Usage:" in result.stdout and result.stderr == ""
    assert re.fullmatch(r"specdec \d+\.\d+\S*\n", succeeded("--version").stdout)
