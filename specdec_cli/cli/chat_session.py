"""The lines of a chat, typed or from a script: messages for the model, and commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper

from rich.console import RenderableType

from specdec_cli.chat import saved_conversations
from specdec_cli.cli.edit_passage import fence_around
from specdec_cli.cli.error_reporting import complain
from specdec_cli.cli.output import print_parts, show_answer
from specdec_cli.cli.prompt_input import read_file
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.options import options_of
from specdec_cli.decoding.rules import label
from specdec_cli.display.run_report import alone_line, turn_line
from specdec_cli.display.tables import lines_table
from specdec_cli.display.terminal import raw, safe, status_line
from specdec_cli.engine.conversation import Conversation
from specdec_cli.engine.session import Generation
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.settings.options import AUTO, flag_of, name_of
from specdec_cli.settings.settings import Settings, check_value
from specdec_cli.user_files import data_dir, expanded, make_private, nearest, require_file

FENCE = '"""'
"""Starts and ends a message of several lines."""


class ChatSession:
    """A conversation on a terminal or from a script. left: whether the user has left. exit_code: of the whole chat.

    A method do_NAME is the command /NAME, and /help shows its docstring.
    """

    def __init__(self, conversation: Conversation, interrupt: Interrupt) -> None:
        self.conversation, self._interrupt = conversation, interrupt
        self.left, self.exit_code = False, 0
        self.answer: Generation | None = None
        """The last answer, if it belongs to the last message."""
        self.unsent = ""
        """The text that the next line starts with."""
        self.attached = ""
        """The files that the next message starts with."""
        self._sent = ""
        """The files that the last message started with."""
        self._changing = False
        """Whether the next message replaces the last one: `/edit` put that into the editor."""
        self._drafter = "none"
        """The drafter before `/drafts off`."""
        self._notes = set[str]()
        """Notes that were shown."""

    def take(self, line: str, is_command: bool) -> None:
        """Handle a message or a command. After an error or Ctrl-C, the chat continues. Other signals end it; in a
        script, Ctrl-C does, too.
        """
        try:
            with self._interrupt:
                if is_command:
                    name, _, argument = line.partition(" ")
                    name = _ALIASES.get(name, name)
                    if name not in COMMANDS:
                        fix = nearest(name, COMMANDS) or "/help lists the commands."
                        raise UsageError(f"there is no command {name}", fix)
                    COMMANDS[name](self, argument.strip())
                elif line.strip():
                    self._send(line, self._changing)
        except Interrupted:
            complain(SpecdecError("interrupted"))
        except SpecdecError as error:
            complain(error)
            if not sys.stdin.isatty():
                self.exit_code = error.exit_code
                self.attached = self.attached if is_command else ""
        finally:
            code = self._interrupt.exit_code
            self._interrupt.clear()
            if code not in (0, 130) or (code and not sys.stdin.isatty()):
                self.left, self.exit_code = True, code

    def take_unsent(self) -> str:
        """The text that the next line starts with, fenced if it begins like a command or a fence."""
        unsent, self.unsent = self.unsent, ""
        self._changing = self._changing and bool(unsent)
        return f"{FENCE}{unsent}{FENCE}" if unsent.startswith(("/", FENCE)) else unsent

    def say(self, what: RenderableType) -> None:
        print_parts(what, stderr=True, style="dim", uncut=True)

    def _send(self, line: str, changing: bool) -> None:
        """Show the answer to a message, or to a changed last one. Without an answer, the conversation stays as it was,
        and the next line starts with the message.
        """
        conversation, files = self.conversation, self.attached
        messages, answer = list(conversation.messages), self.answer
        if changing and (conversation.undo() or "").startswith(self._sent):
            files = self._sent + files
        count = len(conversation.messages)
        try:
            self._run(conversation.ask(files + line))
        finally:
            if len(conversation.messages) > count:
                self._sent, self.attached, self.unsent, self._changing = files, "", "", False
            else:
                conversation.messages, self.answer = messages, answer
                self.unsent, self._changing = line, changing

    def _run(self, answer: Generation) -> None:
        """Show an answer, keep it as far as it came, and report it. A message without an answer becomes `unsent`."""
        conversation, result = self.conversation, answer.result
        if conversation.n_dropped:
            self.say(f"too long for the context: the model no longer sees the first {conversation.n_dropped} messages")
        try:
            self._show(answer)
        finally:
            if result.text or result.complete:
                conversation.keep(answer)
                self.answer = None
            elif not conversation.answered:
                self.unsent = conversation.undo() or ""
        self.answer = answer
        self.say(turn_line(result.metrics, result.baseline))

    def _show(self, answer: Generation) -> None:
        error = show_answer(self.conversation.session, answer)
        for note in answer.result.notes:
            if note not in self._notes:
                self._notes.add(note)
                self.say(f"note: {note}")
        if isinstance(error, SpecdecError):
            raise error
        if error:  # the reader has gone: nobody would see the other answers of a script
            self.left = not sys.stdin.isatty()

    def do_help(self, _: str) -> None:
        """list the commands"""
        self.say(lines_table({name: command.__doc__ for name, command in COMMANDS.items()}))
        self.say('Several lines: """ before and after them, or Alt-Enter. Ctrl-C stops an answer, Ctrl-D leaves.')

    def do_exit(self, _: str) -> None:
        """leave, as Ctrl-D does"""
        self.left = True

    def do_clear(self, _: str) -> None:
        """start a new conversation"""
        self.conversation.clear()
        self.answer, self.attached = None, ""
        self.say("new conversation")

    def do_regen(self, _: str) -> None:
        """answer the last message again"""
        self._run(self.conversation.regenerate())

    def do_undo(self, _: str) -> None:
        """remove a file that waits, or the last message and its answer"""
        if self.attached:
            self.attached = ""
            self.say("removed the file")
            return
        text, self.answer = self.conversation.undo(), None
        self.say("there is nothing to remove" if text is None else f"removed: {text[:60]}")

    def do_edit(self, argument: str) -> None:
        """change the last message"""
        messages = [message["content"] for message in self.conversation.messages if message["role"] == "user"]
        if not messages:
            raise UsageError("there is no message to change", "Write one.")
        text = argument or messages[-1].removeprefix(self._sent)
        if argument or not sys.stdin.isatty():
            self._send(text, changing=True)
        else:
            self.unsent, self._changing = text, True

    def do_system(self, argument: str) -> None:
        """show the system message, or set it: /system TEXT"""
        if argument:
            self.conversation.system = argument
        self.say(f"system message: {self.conversation.system or 'none'}")

    def do_set(self, argument: str) -> None:
        """set an option for drafting or sampling: /set temp 0.7"""
        written, _, text = argument.partition(" ")
        name = name_of(written)
        conversation = self.conversation
        for which in ("sampling", "speculative"):
            values = getattr(conversation, which)
            if name in options_of(type(values)):
                values = replace(values, **{name: check_value(name, text.strip(), text=True)})
                conversation.set_options(**{which: values})
                return
        what = f"there is no option {written!r} to set"
        raise UsageError(what, "For example: /set temp 0.7. /show lists the options.")

    def do_show(self, _: str) -> None:
        """show the settings, and how full the context is"""
        conversation = self.conversation
        settings = conversation.settings
        values = settings.recorded().items()
        self.say(lines_table({flag_of(name): in_words(name, value, settings) for name, value in values}))
        n_ctx = conversation.session.settings.ctx
        self.say(f"{len(conversation.messages)} messages, {conversation.n_tokens:,} of {n_ctx:,} tokens")

    def do_file(self, argument: str) -> None:
        """add a file before the next message: /file PATH"""
        text = read_file(expanded(argument), "file")
        fence = fence_around(text)
        self.attached += f"{argument}:\n{fence}\n{text}\n{fence}\n\n"
        self.say(f"{len(text):,} characters come before the next message")

    def do_save(self, argument: str) -> None:
        """save the conversation: /save NAME"""
        for note in saved_conversations.save(self.conversation, argument):
            self.say(f"note: {note}")
        self.say(f"saved as {argument}; to continue: specdec chat --resume {argument}")

    def do_load(self, argument: str) -> None:
        """continue a saved conversation: /load NAME"""
        for note in saved_conversations.restore(self.conversation, argument):
            self.say(f"note: {note}")
        self.answer, self.attached = None, ""
        self.say(f"{len(self.conversation.messages)} messages")

    def do_alone(self, _: str) -> None:
        """answer again with the target alone, and compare"""
        before = self.answer
        if before is None or not before.result.tokens:
            raise UsageError("there is no answer to compare with", "Ask something, or /regen the last answer.")
        answer = before.alone()
        self._show(answer)
        found = None
        if answer.result.complete:
            with suppress(Interrupted), status_line("comparing the answers", silent=False):
                found = before.compared_with(answer.result)
        if found is None:
            self.say("interrupted: the answers were not compared")
            return
        self.say(alone_line(before.result.metrics, found))
        found.require_own()

    def do_drafts(self, argument: str) -> None:
        """turn drafts on or off: /drafts off"""
        if argument not in ("on", "off"):
            raise UsageError(f"drafts can be on or off, not {argument!r}", "/drafts off turns them off.")
        conversation = self.conversation
        names = (conversation.settings.drafter, self._drafter, conversation.session.settings.drafter, AUTO)
        self._drafter = next(name for name in names if name != "none")
        drafter = "none" if argument == "off" else self._drafter
        conversation.set_options(speculative=replace(conversation.speculative, drafter=drafter))
        self.say(f"drafts are {argument}")


COMMANDS: dict[str, Callable[[ChatSession, str], None]] = {
    f"/{name.removeprefix('do_')}": method for name, method in vars(ChatSession).items() if name.startswith("do_")
}
_ALIASES = dict.fromkeys(("/quit", "/bye", "/q"), "/exit")
"""What other chats call a command. /help doesn't list them."""


def in_words(name: str, value: object, settings: Settings) -> str:
    """The value of an option, as `/show` prints it."""
    pair_auto = settings.cascade.auto(settings.draft is not None)
    match value:
        case None:
            return "not set"
        case bool():
            return "on" if value else "off"
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case str() if name == "drafter" and value == pair_auto:
            return f"auto ({value})"
        case str() if name == "accept":
            return label(value)
        case 0 if name == "temperature":
            return "0 (greedy)"
        case float():
            return f"{value:g}"
    return str(value)


def turns(unsent: Callable[[], str]) -> Iterator[tuple[str, bool]]:
    """The messages and commands of the chat, and whether each is a command. unsent: what the next line starts with.

    A script is UTF-8, whatever the system's own encoding is. Raises UsageError if it isn't.
    """
    if sys.stdin.isatty():
        yield from _typed(unsent)
        return
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    try:
        yield from _scripted(sys.stdin)
    except UnicodeDecodeError:
        raise UsageError("standard input is not UTF-8 text", "Convert it first, with iconv.") from None


def _scripted(lines: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """The lines of a script; the lines between two fences are one message."""
    for line in lines:
        text = line.rstrip("\r\n")
        if fenced := text.startswith(FENCE):
            text = text.removeprefix(FENCE)
            while FENCE not in text and (more := next(lines, "")):
                text += "\n" + more.rstrip("\r\n")
            text = text.replace(FENCE, "", 1).strip("\n")
        yield text, text.startswith("/") and not fenced


def _typed(unsent: Callable[[], str]) -> Iterator[tuple[str, bool]]:
    """Lines typed in an editor with history, completion of commands, and messages of several lines by Alt-Enter or a
    fence. Ctrl-C discards the line, Ctrl-D ends the chat.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output
    from prompt_toolkit.output.plain_text import PlainTextOutput
    from prompt_toolkit.utils import is_dumb_terminal

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """After an open fence, add a line instead."""
        if event.current_buffer.text.lstrip().startswith(FENCE) and event.current_buffer.text.count(FENCE) < 2:
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    kept = data_dir() / "chat_history"

    class SavedHistory(FileHistory):
        """Only in memory where it can't be read or written."""

        def load_history_strings(self) -> Iterable[str]:
            with suppress(OSError):
                require_file(kept)
                return super().load_history_strings()
            return ()

        def store_string(self, string: str) -> None:
            with suppress(OSError):
                make_private(kept.parent)
                require_file(kept)
                super().store_string(string)

    dumb, out = is_dumb_terminal(), raw(sys.stdout if sys.stdout.isatty() else sys.stderr)
    # prompt_toolkit escapes typed text itself. It has a plain prompt, but not if PromptSession is given an output.
    with create_app_session(output=PlainTextOutput(out) if dumb else create_output(out)):
        session: PromptSession[str] = PromptSession(
            history=SavedHistory(kept),
            auto_suggest=AutoSuggestFromHistory(),
            completer=WordCompleter(list(COMMANDS), sentence=True),
            complete_while_typing=False,
            key_bindings=keys,
            prompt_continuation="  ",
            enable_suspend=True,
        )
    while True:
        text = unsent()
        try:
            # The plain prompt neither shows the default nor escapes it.
            text = session.prompt(f"> {safe(text)}" if dumb else "> ", default=text)
        except KeyboardInterrupt as error:
            if type(error) is not KeyboardInterrupt:  # raised by a signal, not by the key
                raise
            print("(Ctrl-D leaves)", file=sys.stderr)
        except EOFError:
            return
        else:
            # Several lines may be code that begins with a comment, or the argument of a command that takes a text.
            is_command = text.startswith("/") and ("\n" not in text or text.startswith(("/system ", "/edit ")))
            if text.lstrip().startswith(FENCE):
                text = text.strip().removeprefix(FENCE)
                text = (text.removesuffix(FENCE) if text.endswith(FENCE) else text.replace(FENCE, "", 1)).strip("\n")
            yield text, is_command
