"""`specdec chat`: a script in a pipe, and a person at a terminal."""

import io
import re
import signal
import sys
import time

import pytest
from driver import assert_refused, call, configure
from exactness import spoilt
from faulty_drafters import raising
from prompt_toolkit import PromptSession
from terminal import Terminal
from typer.testing import CliRunner

from specdec_cli.cli import chat
from specdec_cli.cli.app import app
from specdec_cli.cli.chat_session import COMMANDS, ChatSession, turns
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.rules import RULES
from specdec_cli.display.live import PlainDisplay
from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.drafting import Drafting
from specdec_cli.engine.session import Generation
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.target import LlamaTarget
from specdec_cli.user_files import data_dir


@pytest.fixture(scope="module")
def models(chatting):
    return [*chatting, "-k", 3, "-n", 8, "-c", 1024]


def script(models, *lines, more=()):
    """The answers, and what else was said, of a script of turns."""
    text = "".join(f"{line}\n" for line in lines)
    done = CliRunner().invoke(app, ["chat", *map(str, models), *more], input=text, env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def at_terminal(*args, **options):
    """A terminal that answers no questions of where the cursor is."""
    return Terminal("chat", *args, size=(40, 100), env={"PROMPT_TOOLKIT_NO_CPR": "1"}, **options)


def prompted(terminal, line=">"):
    """Wait until a line can be typed: what is typed before is echoed by the terminal itself."""
    ends = time.monotonic() + 60
    while terminal.text.split("\n")[-1].rstrip() != line:
        assert time.monotonic() < ends, terminal.text
        terminal.take()


def enter(terminal, text, until):
    """Type a line once that can be done, and wait for what it brings."""
    prompted(terminal)
    terminal.press(text + b"\r")
    terminal.read(until=until)


def test_a_script_of_turns(models, tmp_path):
    (tmp_path / "code.py").write_text("x = 1\n")
    code, out, err = script(
        models,
        "one",
        "/alone",
        "/drafts off",
        "/regen",
        "/drafts on",
        f"/file {tmp_path / 'code.py'}",
        '"""two',
        "of several lines",
        '"""',
        "",
        "/save mine",
        "/set temp 0.7",
        "/set seed null",
        "/set seed 3",
        "/show",
        "/undo",
        "/system Be brief.",
        "/edit three",
        "/clear",
        "/help",
        "/exit",
        "four",
    )
    assert code == 0 and err.count("tokens/s, ") == 4
    assert "same text, token for token; " in err and "5 characters come before" in err
    assert "removed: " in err
    assert "system message: Be brief." in err and all(name in err for name in COMMANDS)
    again = script(models, "/system", more=["--resume", "mine", "--system", "Be kind."])
    assert again[0] == 0 and "4 messages" in again[2] and "note" not in again[2]
    assert "system message: Be kind." in again[2]
    assert out.count("\n") >= 5


def test_text_between_fences_is_a_message_just_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('"""// x  \ny  \n"""\n"""/clear"""\n/help\n"""What?""" Be brief.\n'))
    assert list(turns(str)) == [("// x  \ny  ", False), ("/clear", False), ("/help", True), ("What? Be brief.", False)]


def test_a_returned_message_keeps_its_fences(monkeypatch):
    session = ChatSession(None, None)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(PromptSession, "prompt", lambda *_, default: default)
    for session.unsent in ('/app.py:\n"""Doc."""\nx = 1', '"""Doc."""\nx = """a"""'):
        unsent = session.unsent
        assert next(turns(session.take_unsent)) == (unsent, False)
    assert next(turns(lambda: '"""code""" explain')) == ("code explain", False)


def test_a_refused_message_and_its_file_are_kept(monkeypatch):
    class Full:
        messages = ()

        def ask(self, text):
            assert text == "a.txt:one"
            raise SpecdecError("full", "Write less.")

    session = ChatSession(Full(), Interrupt())
    for typed, kept in ((True, "a.txt:"), (False, "")):  # in a script, nobody could remove it
        monkeypatch.setattr(sys.stdin, "isatty", lambda typed=typed: typed)
        session.attached = "a.txt:"
        session.take("/nope", True)
        session.take("one", False)
        assert (session.attached, session.unsent) == (kept, "one")
    session.attached = "a.txt:"
    session.do_undo("")
    assert session.attached == ""


def test_an_edit_that_is_left_or_interrupted_changes_nothing(monkeypatch):
    """Nor does its file get lost, which the editor doesn't show."""
    asked = []

    class Interrupting(Conversation):
        def _start(self):
            asked.append([message["content"] for message in self.messages])
            raise Interrupted

    before = [{"role": "user", "content": "a.txt:one"}, {"role": "assistant", "content": "two"}]
    session = ChatSession(Interrupting(None, list(before)), Interrupt())
    session._sent = "a.txt:"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for command, text in (("/edit", "one"), ("/edit four", "four")):
        session.take(command, True)
        assert session.take_unsent() == text and session.conversation.messages == before
        session.take("three", False)
        assert session.take_unsent() == "three" and session.conversation.messages == before
        assert session.take_unsent() == "", "Ctrl-C at the prompt"
    session.attached = "b.txt:"
    session.take("five", False)
    assert (session.attached, session.take_unsent()) == ("b.txt:", "five") and session.conversation.messages == before
    edits = ["a.txt:three"], ["a.txt:four"], ["a.txt:three"]
    assert asked == [*edits, ["a.txt:one", "two", "b.txt:five"]]


def test_a_rule_that_was_named_stays_and_what_is_missing_is_told_before_loading(models, monkeypatch):
    err = script(models, "/set temp 0.8", "/set seed 1", "/show", more=["--accept", "rejection"])[2]
    assert "coupled" not in err and "rejection" in err
    monkeypatch.setattr(chat, "loaded", None)
    for wrong in (["--resume", "none"], ["--prediction", "/none", "--drafter", "ngram"]):
        assert_refused(call("chat", *models, *wrong), 2, "none")


def test_a_file_with_fences_gets_longer_ones(tmp_path):
    (tmp_path / "page.md").write_text("```\nmake\n```\n")
    session = ChatSession(None, None)
    session.do_file(str(tmp_path / "page.md"))
    assert session.attached.endswith(":\n````\n```\nmake\n```\n````\n\n")


def test_a_file_belongs_to_one_message_of_one_conversation(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    start_again = ["/file a.txt", "/clear", "two", "/undo", "/save mine", "/file a.txt", "/load mine", "three", "/undo"]
    err = script(models, "/file a.txt", "one", "/undo", *start_again)[2]
    assert re.findall(r"removed: (\S+)", err) == ["a.txt:", "two", "three"]
    assert data_dir().stat().st_mode & 0o777 == 0o700, "what people say is their own"


def test_a_refused_edit_changes_nothing(models):
    code, _, err = script(models, "one", f"/edit {'x' * 4000}", "/show")
    assert code == 1 and "fills the context" in err and "2 messages" in err


def test_show_prints_words_and_the_rule_that_is_in_use(models):
    changes = ("/set seed 4", "/set bitwise on", "/set -n 40", "/set k 4")
    _, _, err = script(models, "/show", *changes, "/show", more=["--drafter", "auto"])
    said = {" ".join(line.split()) for line in err.splitlines()}
    assert {"drafter auto (ngram+model)", "temp 0 (greedy)", "lora none", "seed not set"} <= said
    assert {"seed 4", "bitwise on", "max-tokens 40", "draft-tokens 4"} <= said
    assert not re.search(r"None|True|False|[(\[{]['\"]?[,)\]}]|=", err)
    assert re.search(r"accept +coupled", err)
    configure("accept: rejection\n")
    assert re.search(r"accept +rejection", script(models, "/show")[2])


def test_drafts_come_back(models):
    """With the drafter that was last in use, or what the pair has."""
    for drafter, change, after in (("none", "/drafts on", "ngram"), ("model", "/set drafter ngram", "ngram")):
        off_and_on = (change, "/drafts off", "/drafts off", "/show", "/drafts on", "/show")
        err = script(models, *off_and_on, more=["--drafter", drafter])[2]
        assert re.findall(r"^drafter +(.*?) *$", err, re.MULTILINE) == ["none", after]


def test_alone_finds_a_bug_and_says_what_to_do(models, monkeypatch):
    script_of = ("one", "two", "/alone")
    assert script(models, *script_of)[0] == 0
    monkeypatch.setitem(RULES, "coupled", spoilt("coupled"))
    code, _, err = script(models, *script_of)
    assert code == 1 and "the answer is not the target's own: computed again" in err and "please report it" in err


def test_alone_is_interrupted_while_it_compares(models, monkeypatch):
    monkeypatch.setattr(Generation, "compared_with", raising(Interrupted()))
    refused = ("/load none", f"/edit {'x' * 4000}")
    code, _, err = script(models, "one", "/alone", "two", *refused, "/alone", "/clear", "/alone")
    assert err.count("interrupted: the answers were not compared") == err.count("tokens/s, ") == 2
    assert err.count("there is no answer to compare with") == 1 and code == 2


def test_ctrl_c_before_an_answer_begins_ends_only_that_answer(models, monkeypatch):
    """As while passes are measured. The message is dropped or stays as it was, and the display is closed."""
    policy, closed, calls = Drafting.policy, [], iter(range(9))

    def interrupted(*args):
        if next(calls):
            raise Interrupted
        return policy(*args)

    monkeypatch.setattr(Drafting, "policy", interrupted)
    monkeypatch.setattr(PlainDisplay, "close", lambda _: closed.append(True))
    code, _, err = script(models, "one", "two", "/edit three", "/show", "/undo")
    assert (code, len(closed)) == (0, 4) and err.count("specdec: interrupted\n") == 2
    assert "2 messages" in err and "removed: one" in err


def test_ctrl_c_outside_an_answer_does_not_end_the_chat(models, monkeypatch):
    fitting, undo, undone = Conversation._fitting, Conversation.undo, []
    monkeypatch.setitem(COMMANDS, "/save", lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(Conversation, "_fitting", lambda self: (fitting(self), signal.raise_signal(signal.SIGINT))[0])
    monkeypatch.setattr(Conversation, "undo", lambda self: undone.append(undo(self)))
    assert script(models, "one")[0] == 130 and undone == ["one"]
    session = ChatSession(None, Interrupt())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    session.take("/save mine", True)
    assert (session.left, session.exit_code) == (False, 0)


def test_a_script_ends_with_its_reader(models, monkeypatch):
    monkeypatch.setattr(PlainDisplay, "show", raising(BrokenPipeError()))
    monkeypatch.setattr("specdec_cli.cli.output.close", lambda _: None)
    code, _, err = script(models, "one", "/show")
    assert code == 0 and "messages" not in err


def test_an_answer_that_fails_is_kept_as_far_as_it_came(models, monkeypatch):
    verify, calls = LlamaTarget.verify, iter(range(10**6))

    def fail(self, *args):
        if next(calls) == 1:
            raise SpecdecError("the GPU is lost", "Restart.")
        return verify(self, *args)

    monkeypatch.setattr(LlamaTarget, "verify", fail)
    code, _, err = script(models, "one", "/show")
    assert code == 1 and "the GPU is lost" in err and "2 messages" in err


def test_what_is_wrong_is_told_and_the_chat_goes_on(models, tmp_path):
    wrong = ["/nope", "/set", "/set temp hot", "/set drafter magic", "/drafts maybe", "/alone", "/edit", "/save a/b"]
    code, _, err = script(models, *wrong, "/load none", f"/file {tmp_path}", "/file a\0b", "one", "x" * 4000, "two")
    assert err.count("specdec: ") == 12 and "Traceback" not in err and code == 1
    assert err.count("tokens/s, ") == 2 and err.count("cannot read the file ") == 2


def test_a_data_folder_that_cannot_be_written(models, tmp_path, monkeypatch):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    monkeypatch.setenv("XDG_DATA_HOME", str(loop))
    code, out, err = script(models, "one", "/save mine", "two")
    assert code == 1 and len(out.splitlines()) == 2 and err.count("cannot write") == 1


def test_what_cannot_be_talked_with(models):
    assert_refused(call("chat"), 2, "has no chat template", "specdec run")
    assert_refused(call("chat", "-m", "/none.gguf", SPECDEC_DRAFTER="ngram"), 2, "there is no file")
    code, _, err = script(models, more=["--resume", "none"])
    assert code == 2 and "no saved conversation" in err and "Saved conversations: none yet." in err
    for encoding in ("utf-8", "latin-1"):  # of this process for a pipe
        done = CliRunner(charset=encoding).invoke(app, ["chat", *map(str, models)], input=b"caf\xe9\n")
        assert_refused(done, 2, "is not UTF-8 text")


def test_a_full_context(models):
    lines = [f"question {i} which is rather long" for i in range(12)]
    small = [*models[:-1], 256]
    code, _, err = script(small, *lines)
    assert code == 0 and "the model no longer sees the first" in err
    code, _, err = script(small, *lines, more=["--ctx-policy", "stop"])
    assert code == 1 and "fills the context of 256 tokens" in err


def test_at_a_terminal(models):
    with at_terminal(*models) as terminal:
        terminal.read(until="Ctrl-D leaves")
        enter(terminal, b"one", "tokens kept")
        prompted(terminal)
        terminal.press(b"/dra\t")
        terminal.read(until="/drafts")
        terminal.press(b" on\r")
        terminal.read(until="drafts are on")
        enter(terminal, b"/edit", "/edit")
        prompted(terminal, "> one")
        terminal.press(b"\x7f\x7f\x7f/two")
        terminal.read(until="/two")
        terminal.press(
            b"\x1b\r"
        )  # by itself: a busy terminal may split what is typed at once, and Escape is a key, too
        terminal.press(b"three\r")
        terminal.read(until="three")
        prompted(terminal)
        assert terminal.text.count("tokens kept") == 2
        terminal.press(b"half\x03")
        terminal.read(until="(Ctrl-D leaves)")
        prompted(terminal)
        terminal.press(b"\x04")
        assert terminal.ended() == 0


@pytest.mark.slow
def test_at_a_dumb_terminal_with_the_answers_in_a_file(models):
    with Terminal("chat", *models, env={"TERM": "dumb"}, streams=("stdin", "stderr")) as terminal:
        enter(terminal, b"zebra", "tokens kept")
        enter(terminal, b"/edit", "/edit")
        prompted(terminal, "> zebra")
        terminal.press(b"\r")
        prompted(terminal)
        terminal.press(b"/exit\r")
        assert terminal.ended() == 0 and b"\x1b" not in terminal.raw
        assert terminal.text.count("tokens kept") == terminal.text.count("> zebra") == 2
        assert b"zebra" not in terminal.process.stdout.read(), "what is typed is no answer"


@pytest.mark.slow
def test_a_signal_at_the_prompt(models):
    with at_terminal(*models) as terminal:
        prompted(terminal)
        assert terminal.ended_by(signal.SIGHUP) == 129


@pytest.mark.slow
def test_an_answer_is_stopped_and_kept(models):
    with at_terminal(*models[:-4], "-n", 16000, "-c", 16384) as terminal:
        enter(terminal, b"one", "tok/step")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read(until="interrupted")
        enter(terminal, b"/show", "2 messages")
        enter(terminal, b"two", "tok/step")
        assert terminal.ended_by(signal.SIGTERM) == 143
