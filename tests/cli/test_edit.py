"""`specdec edit`: what the model is asked, what becomes of the file, and what is refused."""

import os
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from types import SimpleNamespace

import pytest
from driver import assert_refused, call, configure
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from specdec_cli.cli import edit as command
from specdec_cli.cli.app import app
from specdec_cli.cli.edit import diff, show_diff
from specdec_cli.cli.edit_passage import Passage
from specdec_cli.decoding.errors import SpecdecError

TEXT = "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n"
STREAMS = ("stdin", "stdout", "stderr")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "code.py"
    path.write_bytes(TEXT.encode())
    return path


def answering(monkeypatch, text, meanwhile=lambda: None, reason="stop"):
    """Let the model's answer be this text."""

    def show(_session, answer, **_):
        meanwhile()
        answer.prepare()
        answer.result.text, answer.result.metrics.reason = text, reason

    monkeypatch.setattr(command, "show_answer", show)


def invoke(*args):
    done = CliRunner().invoke(app, ["edit", *map(str, args)])
    return done.exit_code, done.stdout, done.stderr


# The passage


@pytest.fixture
def changed(tmp_path):
    """What an answer makes of a text, or of some of its lines."""

    def changed(answer, text=TEXT, name="code.py", lines=None):
        (tmp_path / name).write_bytes(text.encode())
        return Passage.read(tmp_path / name, lines).changed(answer)

    return changed


def test_of_a_part_only_these_lines_are_sent_and_replaced(file, changed):
    whole = Passage.read(file, None).prompt("Rename add.")
    assert "the file code.py as follows: Rename add." in whole and whole.endswith(f"```\n{TEXT}```")
    passage = Passage.read(file, "1:2")
    assert passage.text == "def add(a, b):\n    return a + b\n" and "these lines of" in passage.prompt("x")
    assert Passage.read(file, "4:").text == "\nprint(add(1, 2))\n" and Passage.read(file, ":99").text == TEXT
    answer = "```python\ndef add(x, y):\n    return x + y\n```"
    assert changed(answer, lines="1:2") == TEXT.replace("a, b", "x, y").replace("a + b", "x + y")


@pytest.mark.parametrize(
    "answer",
    [
        "```python\r\nnew\r\n```\r\n",
        "Here it is:\n\n```py\nnew\n```\n\nDone.",
        "```py\nnew\n```\n\nRun it with:\n\n```sh\npython code.py\n```",
        "<think>Perhaps ```py\nold\n```</think>\n\n```py\nnew\n```",
        "[THINK]Perhaps ```py\nold\n```[/THINK]```py\nnew\n```",
        " ```python\nnew\n```",
        "~~~python\nnew\n~~~",
        "<|channel|>analysis<|message|>```\nold\n```<|end|><|start|>assistant<|channel|>final<|message|>```\nnew\n```",
        "<|channel|>final<|message|>Sure.<|end|><|start|>assistant<|channel|>final<|message|>```\nnew\n```",
    ],
)
def test_the_first_code_block_is_taken(changed, answer):
    assert changed(answer) == "new\n"


def test_thoughts_that_the_prompt_opens_are_left_out(file):
    answer = f"Perhaps ```\n{TEXT}```</think>\n\n```\nnew\n```"
    assert Passage.read(file, None).changed(answer, thinks=True) == "new\n"
    answer = "<think>\nHm.\n</think>\n\n    return b + a\n"
    assert Passage.read(file, "2:2").changed(answer) == TEXT.replace("a + b", "b + a")


@pytest.mark.parametrize(
    "answer",
    [
        "First install mypy:\n\n```bash\npip install mypy\n```\n\nThen:\n\n```python\n{new}```",
        "Before:\n\n```python\n{old}```\n\nAfter:\n\n```python\n{new}```",
        "```python\n{new}```\n\nRun it with:\n\n```\npython code.py\n```",
        "{new}\n\n",
    ],
)
def test_of_several_blocks_or_of_none_the_changed_text_is_taken(changed, answer):
    new = TEXT.replace("add", "plus")
    assert changed(answer.format(old=TEXT, new=new)) == new


def test_blank_lines_before_a_text_stay(changed):
    text = f"\n\n{TEXT}"
    assert changed(TEXT, text) == text
    new = TEXT.replace("\n\n\n", "\n\n```sh\npython code.py\n```\n\n")
    assert changed(new, text) == f"\n\n{new}"
    new = TEXT.replace("1", "3")
    assert changed("```\nprint(add(3, 2))\n```", lines="3:5") == new
    assert changed("```\n\n\n\nprint(add(3, 2))\n```", lines="3:5") == new.replace("\n\n", "\n\n\n"), "but may grow"


@pytest.mark.parametrize("inner", ["```sh\nmake\n```\n", "~~~\nmake\n~~~\n", "1. Run\n   ```sh\n   make\n   ```\n"])
def test_blocks_in_the_block_are_a_part_of_it(changed, inner):
    new = f"# Use\n\n{inner}\n# Licence\n"
    assert changed(f"```markdown\n{new}```\n\nAnd:\n\n```sh\nls\n```") == new


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Sorry, I can't.",
        "```\n\n```",
        f"Here it is:\n\n```python\n{TEXT}",
        f"Sure! Here is the changed file:\n\n{TEXT}",
        f"The updated code:\n\n{TEXT}",
        f"```diff\n-def add(a, b):\n+def plus(a, b):\n{TEXT[15:]}```",
        f"```\n@@ -1 +1 @@\n-def add(a, b):\n+def plus(a, b):\n{TEXT[15:]}```",
    ],
)
def test_any_other_answer_is_refused(changed, answer):
    with pytest.raises(SpecdecError, match="nothing was written"):
        changed(answer)


@pytest.mark.parametrize(
    "line",
    [
        "# ...",
        "    # ... (other functions remain the same) ...",
        "# Rest of the code remains unchanged",
        "{/* … */}",
        "[... rest of the file ...]",
        "...(rest of the code)...",
        "[...unchanged]",
        "# ...rest of code",
        "...existing code...",
    ],
)
def test_a_line_in_place_of_others_is_refused_unless_it_was_there(changed, line):
    for answer in (f"```python\n{TEXT}{line}\n```", f"{TEXT}{line}\n"):
        with pytest.raises(SpecdecError, match="leaves out a part"):
            changed(answer)
    assert changed(f"{TEXT}{line}\n...\n", f"{TEXT}{line}\n") == f"{TEXT}{line}\n...\n"


@pytest.mark.parametrize("line", ["  {...rest}", "  ...other,", "[...existing, item],", "  ...(existing || []),"])
def test_a_spread_in_javascript_leaves_nothing_out(changed, line):
    assert changed(f"{TEXT}{line}\n") == f"{TEXT}{line}\n"


@pytest.mark.parametrize("prose", ["", "Here is the changed file:\n\n"])
def test_the_fences_around_a_text_with_fences_may_be_short(changed, prose):
    text = "# Use\n\n```sh\nmake\n```\n\n# Licence\n"
    new = text.replace("Use", "Usage")
    assert changed(f"{prose}```markdown\n{new}```", text) == new
    with pytest.raises(SpecdecError, match="nothing was written"):  # where it ends can't be seen
        changed(f"{prose}```markdown\n{new.replace('```sh', '```')}```", text)


def test_a_text_with_fences_gets_longer_ones(file, changed):
    text, new = "# Use\n\n```sh\nmake\n```\n", "# Usage\n\n```sh\nmake\n```\n"
    assert changed(f"````\n{new}````", text) == changed(new, text) == new
    assert "\n````\n# Use" in Passage.read(file, None).prompt("x")
    assert changed(new.replace("`", "~"), text.replace("`", "~")) == new.replace("`", "~")


def test_what_looks_like_more_than_text_loses_nothing(changed):
    """A heading that is no fence, a diff, and a text about thoughts."""
    heading = "Use\n-----\nRun make.\n\nSee\n-----\nRun it.\n"
    assert changed(heading.replace("-----", "~~~~~"), heading) == heading.replace("-----", "~~~~~")
    patch = "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"
    new = patch.replace("y", "z")
    assert changed(f"```diff\n{new}```", patch, "a.diff") == new
    code = 'begin = "<think>"\nend = "</think>"\nx = 1\n'
    new = code.replace("1", "2")
    for answer in (new, f"```\n{new}```", f"<think>Hm.</think>\n\n```\n{new}```"):
        assert changed(answer, code) == new


def test_old_lines_keep_their_endings(changed):
    text = "a = 1\r\nb = 2\nc = 3\r\nd = 4\r\n"
    new = changed("```\na = 1\nb = 2\nc = 5\nnew\nd = 4\n```", text)
    assert new == "a = 1\r\nb = 2\nc = 5\r\nnew\r\nd = 4\r\n"
    assert changed("```\nb = 2\nc = 5\n```", text, lines="2:3") == "a = 1\r\nb = 2\nc = 5\r\nd = 4\r\n"
    text = "".join(f"x = {i}\r\n}}\n" for i in range(200))  # so many equal lines are not compared
    new = text.replace("x = 7\r\n", "y = 7\r\n")
    assert changed(f"```\n{new}```".replace("\r", ""), text) == new.replace("y = 7\r\n", "y = 7\n")


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=9), min_size=1, max_size=9
    )
)
@example(["a\r", "b\r", ""])
@example(["\ufeffa", "b", ""])
@example(["a\r", "b", ""])
@example(["a\r\r", "b\r", ""])
@example(["a\u2028b\x0bc", ""])
def test_an_answer_that_repeats_the_text_changes_nothing(tmp_path_factory, lines):
    """Line breaks, marks and the end of the file included."""
    path = tmp_path_factory.mktemp("edit") / "a.txt"
    path.write_bytes("\n".join(lines).encode())
    if "".join(lines).strip():
        passage = Passage.read(path, None)
        fence = passage.prompt("").rsplit("\n", 1)[1]
        assert passage.changed(f"{fence}\n{passage.text}\n{fence}").encode() == path.read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a\nb", "a\nb\n"),
        ("a\nb\n", "a\nb"),
        ("a\r\nb\r\n", "a\r\n-- c\r\n"),
        ("caf\u00e9\n", "th\u00e9\n"),
    ],
)
def test_a_diff_is_a_patch(tmp_path, monkeypatch, old, new):
    """Whatever Python does to text in a pipe."""
    path, out = tmp_path / "a file", BytesIO()
    path.write_bytes(old.encode())
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(out, "ascii", "replace", "\r\n", write_through=True))
    show_diff(diff(old, new, path.name))
    assert b"+++ b/a file\t\n" in out.getvalue(), "for GNU patch"
    subprocess.run(["git", "apply", "--unsafe-paths", "-"], input=out.getvalue(), cwd=tmp_path, check=True)
    assert path.read_bytes() == new.encode()


# The file


def test_it_is_written_when_asked_for_and_keeps_its_mode(file, chatting, monkeypatch):
    answering(monkeypatch, f"```python\n{TEXT.replace('add', 'plus')}```")
    code, out, err = invoke(file, "Rename add to plus.", *chatting)
    assert code == 0 and "-def add(a, b):" in out and "+def plus(a, b):" in out
    assert file.read_text() == TEXT, "in a pipe it is not written unasked"
    file.chmod(0o640)
    code, out, err = invoke(file, "Rename add to plus.", *chatting, "--write")
    assert code == 0 and file.read_text() == TEXT.replace("add", "plus") and file.stat().st_mode & 0o777 == 0o640
    assert f"Wrote {file}" in err


def test_it_is_written_even_if_nobody_reads_the_diff(file, chatting, monkeypatch):
    answering(monkeypatch, f"```\n{TEXT.replace('add', 'sum2')}```")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as left:
            app(["edit", *map(str, chatting), str(file), "Rename add.", "--write"])
        assert not left.value.code
    assert "sum2" in file.read_text()


def test_an_answer_that_leaves_out_most_lines_is_not_written_unseen(file, chatting, monkeypatch):
    """The model may have repeated only what it changed."""
    answering(monkeypatch, "```python\ndef plus(a, b):\n    return a + b\n```")
    code, out, err = invoke(file, "Rename add to plus.", *chatting)
    assert code == 0 and "+def plus" in out and "note: the changed text has 3 lines fewer than the 5 before" in err
    code, out, err = invoke(file, "Rename add to plus.", *chatting, "--write")
    assert code == 1 and "+def plus" in out and "nothing was written" in err and file.read_text() == TEXT
    file.write_text("a\nb")  # half of the lines may go; the last one has no line break
    answering(monkeypatch, "```\na\n```")
    assert invoke(file, "Remove b.", *chatting, "--write")[0] == 0 and file.read_text() == "a"


def test_after_ctrl_c_nothing_was_written(file, chatting, monkeypatch):
    monkeypatch.setattr(command, "show_answer", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(command, "print_run_report", lambda *_, **__: None)
    code, out, err = invoke(file, "Add a comment.", *chatting, "--write")
    assert (code, out) == (130, "") and "Nothing was written." in err and file.read_bytes() == TEXT.encode()


@pytest.mark.parametrize("redirected", STREAMS)
def test_it_does_not_ask_where_nobody_sees_the_question(monkeypatch, redirected):
    streams = {name: SimpleNamespace(isatty=lambda name=name: name != redirected) for name in STREAMS}
    monkeypatch.setattr(command, "sys", SimpleNamespace(**streams))
    assert not command._can_ask()


def test_a_file_that_nothing_changes_or_that_changed_meanwhile_is_left_alone(file, chatting, monkeypatch):
    answering(monkeypatch, f"```\n{TEXT}```")
    code, out, err = invoke(file, "Do nothing.", *chatting, "--write")
    assert (code, out) == (0, "") and "Nothing changed." in err
    answering(monkeypatch, f"```\n{TEXT}new\n```", lambda: file.write_text("mine\n"))
    code, _, err = invoke(file, "Rename.", *chatting, "--write")
    assert code == 1 and "has changed since it was read" in err and file.read_text() == "mine\n"


def test_an_answer_that_was_cut_off_is_not_written(file, chatting, monkeypatch):
    code, _, err = invoke(file, "Rename.", *chatting, "-n", 4, "--write", "-c", 1024)
    assert code == 1 and "cut off" in err and "(-n)" in err and file.read_text() == TEXT
    configure("max_tokens: 4\n")
    assert "(-n)" in invoke(file, "Rename.", *chatting, "-c", 1024)[2]
    answering(monkeypatch, "```\nnew", reason="context")
    assert "Use a larger -c" in invoke(file, "Rename.", *chatting)[2]


@pytest.mark.parametrize(
    ("data", "more", "what"),
    [
        (b"\xff\xfe", [], "is not UTF-8 text"),
        (b"a\0b", [], "is not text"),
        (b" \n", [], "there is nothing to change"),
        (b"a\n", ["--range", "2:3"], "there are no lines 2:3"),
        (b"a\n", ["--range", "9" * 5000], "cannot be '999"),
        (b"a\n", ["--range", ""], "cannot be ''"),
        (b"word " * 3000, ["-c", "1024"], "the context holds 1,024"),
        (b"a\nb\nEND = '<|endoftext|>'\n", ["--range", "2:"], "line 3 of"),
        pytest.param("\u00e9".encode() * ((2 << 20) + 1), [], "has more than 4 MiB", id="cut inside a character"),
    ],
)
def test_what_cannot_be_edited_is_refused_in_two_lines(tmp_path, chatting, data, more, what):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    assert_refused(call("edit", path, "Change it.", *chatting, *more), 2, what)
    assert path.read_bytes() == data


def test_no_file_and_a_model_without_a_template_are_refused(tmp_path, file):
    assert_refused(call("edit", tmp_path, "Change it."), 2, "is not a file")
    assert_refused(call("edit", "x" * 300, "Change it."), 2, "is not a file")
    assert_refused(call("edit", file, "Change it."), 2, "has no chat template")
