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
    """A conversation on a terminal, or of a script. left: the user has left it. exit_code: of the whole chat."""

    def __init__(self, conversation: Conversation, interrupt: Interrupt) -> None:
        self.conversation, self._interrupt = conversation, interrupt
        self.left, self.exit_code = False, 0
        self.answer: GenerationResult | None = None
        """The last one."""
        self.draft = ""
        """What the next line begins with."""
        self.attached = ""
        """What the next message begins with."""
        self._told: set[str] = set()

    def take(self, line: str) -> None:
        """A message, or a command. An error is shown, and the chat goes on."""
        try:
            if line.startswith("/"):
                name, _, argument = line.partition(" ")
                if name not in COMMANDS:
                    raise UsageError(f"there is no command {name}", "/help lists them.")
                COMMANDS[name][0](self, argument.strip())
            elif line.strip():
                attached, self.attached = self.attached, ""
                self.run(self.conversation.ask(f"{attached}{line}"))
        except SpecdecError as error:
            complain(error)
            if not sys.stdin.isatty():
                self.exit_code = error.exit_code

    def take_draft(self) -> str:
        draft, self.draft = self.draft, ""
        return draft

    def say(self, text: str | Text) -> None:
        print_parts(text, stderr=True, style="dim", pipe_width=_PIPE_WIDTH)

    def run(self, answer: Generation) -> None:
        """Show an answer, keep it, and say what it was worth."""
        conversation, result = self.conversation, answer.result
        if conversation.n_dropped:
            self.say(f"the context is full: the first {conversation.n_dropped} messages are left out from here on")
        self.show(answer)
        if result.text or result.complete:
            conversation.keep(answer)
        self.answer = result
        self.say(turn_line(result.metrics, result.baseline, result.cached_tokens))

    def show(self, answer: Generation) -> None:
        """Show an answer. Ctrl-C ends it, SIGTERM the chat."""
        with self._interrupt as interrupt:
            error = show_answer(self.conversation.session, answer)
        code = interrupt.exit_code
        interrupt.clear()
        for note in answer.result.notes:
            if note not in self._told:
                self._told.add(note)
                self.say(f"note: {note}")
        if code not in (0, 130) or (code and not sys.stdin.isatty()):
            self.left, self.exit_code = True, code
        if error:
            raise error


def _help(session: ChatSession, _: str) -> None:
    session.say("\n".join(f"{name:<10} {text}" for name, (_action, text) in COMMANDS.items()))
    session.say('Several lines: """ before and after them, or Alt-Enter. Ctrl-C stops an answer, Ctrl-D leaves.')


def _exit(session: ChatSession, _: str) -> None:
    session.left = True


def _clear(session: ChatSession, _: str) -> None:
    session.conversation.clear()
    session.say("a new conversation")


def _again(session: ChatSession, _: str) -> None:
    session.run(session.conversation.again())


def _undo(session: ChatSession, _: str) -> None:
    text = session.conversation.undo()
    session.say("there is nothing to take back" if text is None else f"taken back: {text[:60]}")


def _edit(session: ChatSession, argument: str) -> None:
    text = session.conversation.undo()
    if text is None:
        raise UsageError("there is no message to change", "Write one.")
    if argument or not sys.stdin.isatty():
        session.run(session.conversation.ask(argument or text))
    else:
        session.draft = text


def _system(session: ChatSession, argument: str) -> None:
    if argument:
        session.conversation.system = argument
    session.say(f"system message: {session.conversation.system or 'none'}")


def _set(session: ChatSession, argument: str) -> None:
    written, _, text = argument.partition(" ")
    name = name_of(written)
    conversation = session.conversation
    for which in ("sampling", "speculative"):
        values = getattr(conversation, which)
        if name in options_of(type(values)):
            values = replace(values, **{name: check_value(name, text.strip(), text=True)})
            conversation.go_by(**{which: values})
            return
    raise UsageError(f"there is no option {written!r} to set", "For example: /set temp 0.7; /show lists what is set.")


def _show(session: ChatSession, _: str) -> None:
    conversation = session.conversation
    for name, value in conversation.settings.shaping().items():
        session.say(f"{name:<18} {value}")
    n_ctx = conversation.session.settings.ctx
    session.say(f"{len(conversation.messages)} messages, {conversation.n_tokens:,} of {n_ctx:,} tokens")


def _file(session: ChatSession, argument: str) -> None:
    text = read_file(expanded(argument))
    session.attached += f"{argument}:\n```\n{text}\n```\n\n"
    session.say(f"{len(text):,} characters go with the next message")


def _save(session: ChatSession, argument: str) -> None:
    path = kept_conversations.save(session.conversation, argument)
    session.say(f"kept as {path.stem}: specdec chat --resume {path.stem}")


def load(session: ChatSession, argument: str) -> None:
    for note in kept_conversations.restore(session.conversation, argument):
        session.say(f"note: {note}")
    session.say(f"{len(session.conversation.messages)} messages")


def _alone(session: ChatSession, _: str) -> None:
    before = session.answer
    if before is None or not session.conversation.answered:
        raise UsageError("there is no answer to compare with", "Ask something first.")
    answer = session.conversation.again(alone=True, seed=before.seed)
    session.show(answer)
    if answer.result.complete:
        differs_at = first_difference(before.tokens, answer.result.tokens)
        session.say(alone_line(before.metrics, answer.result.metrics, differs_at))


def _drafts(session: ChatSession, argument: str) -> None:
    if argument not in ("on", "off"):
        raise UsageError(f"drafts are on or off, not {argument!r}", "/drafts off switches them off.")
    drafter = "none" if argument == "off" else session.conversation.session.settings.drafter
    session.conversation.go_by(speculative=replace(session.conversation.speculative, drafter=drafter))
    session.say(f"drafts are {argument}")


COMMANDS: dict[str, tuple[Callable[[ChatSession, str], None], str]] = {
    "/help": (_help, "these lines"),
    "/exit": (_exit, "leave; Ctrl-D does, too"),
    "/clear": (_clear, "begin a new conversation"),
    "/regen": (_again, "answer the last message again"),
    "/undo": (_undo, "take the last message and its answer back"),
    "/edit": (_edit, "change the last message"),
    "/system": (_system, "show the system message, or set another: /system TEXT"),
    "/set": (_set, "set an option of run: /set temp 0.7"),
    "/show": (_show, "what is set, and how full the context is"),
    "/file": (_file, "put a file before the next message: /file PATH"),
    "/save": (_save, "keep the conversation: /save NAME"),
    "/load": (load, "go on with one that was kept: /load NAME"),
    "/alone": (_alone, "answer again with the target alone, and compare"),
    "/drafts": (_drafts, "switch drafts off and on: /drafts off"),
}
"""Each command: what it does with its argument, and its line in /help."""


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
