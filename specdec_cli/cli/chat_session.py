"""A chat's lines, typed or from a script, and what is done with each: a message for the model, or a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import TextIOWrapper

import platformdirs
from rich.text import Text

from specdec_cli.chat import kept_conversations
from specdec_cli.chat.conversation import Conversation
from specdec_cli.cli.error_reporting import complain
from specdec_cli.cli.output import print_parts, show_answer
from specdec_cli.cli.prompt_input import read_file
from specdec_cli.decoding.divergence import first_difference
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.decoding.options import options_of
from specdec_cli.display.run_report import alone_line, turn_line
from specdec_cli.display.terminal import raw
from specdec_cli.engine.config import check_value
from specdec_cli.engine.generation import GenerationResult
from specdec_cli.engine.options import name_of
from specdec_cli.engine.session import Generation
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.user_files import expanded

FENCE = '"""'
"""Begins a message of several lines, and ends it."""
_PIPE_WIDTH = 200
"""Cells of a line where nothing is a terminal: what is said of an answer stays on one."""


class ChatSession:
    """A conversation on a terminal, or of a script. left: the user has left it. exit_code: of the whole chat.

    A method do_NAME is the command /NAME, and its docstring the line in /help.
    """

    def __init__(self, conversation: Conversation, interrupt: Interrupt) -> None:
        self.conversation, self._interrupt = conversation, interrupt
        self.left, self.exit_code = False, 0
        self.answer: GenerationResult | None = None
        """The last one."""
        self.draft = ""
        """What the next line begins with."""
        self.attached = ""
        """What the next message begins with."""
        self._notes = set[str]()
        """Those that were shown."""

    def take(self, line: str) -> None:
        """A message, or a command. An error is shown, and the chat goes on."""
        try:
            if line.startswith("/"):
                name, _, argument = line.partition(" ")
                if name not in COMMANDS:
                    raise UsageError(f"there is no command {name}", "/help lists them.")
                COMMANDS[name](self, argument.strip())
            elif line.strip():
                attached, self.attached = self.attached, ""
                self._run(self.conversation.ask(f"{attached}{line}"))
        except SpecdecError as error:
            complain(error)
            if not sys.stdin.isatty():
                self.exit_code = error.exit_code

    def take_draft(self) -> str:
        draft, self.draft = self.draft, ""
        return draft

    def say(self, text: str | Text) -> None:
        print_parts(text, stderr=True, style="dim", pipe_width=_PIPE_WIDTH)

    def _run(self, answer: Generation) -> None:
        """Show an answer, keep it, and say what it was worth."""
        conversation, result = self.conversation, answer.result
        if conversation.n_dropped:
            self.say(f"the context is full: the first {conversation.n_dropped} messages are left out from here on")
        self._show(answer)
        if result.text or result.complete:
            conversation.keep(answer)
        self.answer = result
        self.say(turn_line(result.metrics, result.baseline, result.cached_tokens))

    def _show(self, answer: Generation) -> None:
        """Show an answer. Ctrl-C ends it, SIGTERM the chat."""
        with self._interrupt as interrupt:
            error = show_answer(self.conversation.session, answer)
        code = interrupt.exit_code
        interrupt.clear()
        for note in answer.result.notes:
            if note not in self._notes:
                self._notes.add(note)
                self.say(f"note: {note}")
        if code not in (0, 130) or (code and not sys.stdin.isatty()):
            self.left, self.exit_code = True, code
        if error:
            raise error

    def do_help(self, _: str) -> None:
        """these lines"""
        self.say("\n".join(f"{name:<10} {command.__doc__}" for name, command in COMMANDS.items()))
        self.say('Several lines: """ before and after them, or Alt-Enter. Ctrl-C stops an answer, Ctrl-D leaves.')

    def do_exit(self, _: str) -> None:
        """leave; Ctrl-D does, too"""
        self.left = True

    def do_clear(self, _: str) -> None:
        """begin a new conversation"""
        self.conversation.clear()
        self.say("a new conversation")

    def do_regen(self, _: str) -> None:
        """answer the last message again"""
        self._run(self.conversation.again())

    def do_undo(self, _: str) -> None:
        """take the last message and its answer back"""
        text = self.conversation.undo()
        self.say("there is nothing to take back" if text is None else f"taken back: {text[:60]}")

    def do_edit(self, argument: str) -> None:
        """change the last message"""
        text = self.conversation.undo()
        if text is None:
            raise UsageError("there is no message to change", "Write one.")
        if argument or not sys.stdin.isatty():
            self._run(self.conversation.ask(argument or text))
        else:
            self.draft = text

    def do_system(self, argument: str) -> None:
        """show the system message, or set another: /system TEXT"""
        if argument:
            self.conversation.system = argument
        self.say(f"system message: {self.conversation.system or 'none'}")

    def do_set(self, argument: str) -> None:
        """set an option of run: /set temp 0.7"""
        written, _, text = argument.partition(" ")
        name = name_of(written)
        conversation = self.conversation
        for which in ("sampling", "speculative"):
            values = getattr(conversation, which)
            if name in options_of(type(values)):
                values = replace(values, **{name: check_value(name, text.strip(), text=True)})
                conversation.go_by(**{which: values})
                return
        what = f"there is no option {written!r} to set"
        raise UsageError(what, "For example: /set temp 0.7; /show lists what is set.")

    def do_show(self, _: str) -> None:
        """what is set, and how full the context is"""
        conversation = self.conversation
        for name, value in conversation.settings.shaping().items():
            self.say(f"{name:<18} {value}")
        n_ctx = conversation.session.settings.ctx
        self.say(f"{len(conversation.messages)} messages, {conversation.n_tokens:,} of {n_ctx:,} tokens")

    def do_file(self, argument: str) -> None:
        """put a file before the next message: /file PATH"""
        text = read_file(expanded(argument))
        self.attached += f"{argument}:\n```\n{text}\n```\n\n"
        self.say(f"{len(text):,} characters go with the next message")

    def do_save(self, argument: str) -> None:
        """keep the conversation: /save NAME"""
        path = kept_conversations.save(self.conversation, argument)
        self.say(f"kept as {path.stem}: specdec chat --resume {path.stem}")

    def do_load(self, argument: str) -> None:
        """go on with one that was kept: /load NAME"""
        for note in kept_conversations.restore(self.conversation, argument):
            self.say(f"note: {note}")
        self.say(f"{len(self.conversation.messages)} messages")

    def do_alone(self, _: str) -> None:
        """answer again with the target alone, and compare"""
        before = self.answer
        if before is None or not self.conversation.answered:
            raise UsageError("there is no answer to compare with", "Ask something first.")
        answer = self.conversation.again(alone=True, seed=before.seed)
        self._show(answer)
        if answer.result.complete:
            differs_at = first_difference(before.tokens, answer.result.tokens)
            self.say(alone_line(before.metrics, answer.result.metrics, differs_at))

    def do_drafts(self, argument: str) -> None:
        """switch drafts off and on: /drafts off"""
        if argument not in ("on", "off"):
            raise UsageError(f"drafts are on or off, not {argument!r}", "/drafts off switches them off.")
        drafter = "none" if argument == "off" else self.conversation.session.settings.drafter
        self.conversation.go_by(speculative=replace(self.conversation.speculative, drafter=drafter))
        self.say(f"drafts are {argument}")


COMMANDS: dict[str, Callable[[ChatSession, str], None]] = {
    f"/{name.removeprefix('do_')}": method for name, method in vars(ChatSession).items() if name.startswith("do_")
}


def turns(draft: Callable[[], str]) -> Iterator[str]:
    """What is said, turn by turn, until there is no more. draft: what the line begins with, from `/edit`.

    A script is UTF-8, whatever the system's own encoding is. Raises UsageError if it is not.
    """
    if sys.stdin.isatty():
        yield from _typed(draft)
        return
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")
    try:
        yield from _scripted(sys.stdin)
    except UnicodeDecodeError:
        raise UsageError("standard input is not UTF-8 text", "Convert it first, with iconv.") from None


def _scripted(lines: Iterator[str]) -> Iterator[str]:
    """The lines of a script; those between fences are one turn."""
    for line in lines:
        text = line.rstrip("\r\n")
        if text.startswith(FENCE):
            text = text.removeprefix(FENCE)
            while FENCE not in text and (more := next(lines, "")):
                text += f"\n{more.rstrip()}"
            text = text.partition(FENCE)[0].strip("\n")
        yield text


def _typed(draft: Callable[[], str]) -> Iterator[str]:
    """Lines typed with an editor: history, completion of commands, several lines by Alt-Enter or a fence. Ctrl-C drops
    what was typed, Ctrl-D ends the chat.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """A fence that is open takes more lines."""
        if event.current_buffer.text.lstrip().startswith(FENCE) and event.current_buffer.text.count(FENCE) < 2:
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    folder = platformdirs.user_data_path("specdec", appauthor=False)
    folder.mkdir(parents=True, exist_ok=True)
    session: PromptSession[str] = PromptSession(
        output=create_output(raw(sys.stdout)),  # it paints, and neutralises what is typed itself
        history=FileHistory(str(folder / "chat_history")),
        auto_suggest=AutoSuggestFromHistory(),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        key_bindings=keys,
        prompt_continuation="  ",
    )
    while True:
        try:
            text = session.prompt("> ", default=draft())
        except KeyboardInterrupt as error:
            if type(error) is not KeyboardInterrupt:  # a signal, and not the key
                raise
            print("(Ctrl-D leaves)", file=sys.stderr)
        except EOFError:
            return
        else:
            if text.lstrip().startswith(FENCE):
                text = text.replace(FENCE, "").strip("\n")
            yield text
