"""Where the turns of a chat come from: a person at a terminal, or a script in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper

import platformdirs

from specdec_cli.decoding.errors import UsageError

FENCE = '"""'
"""Begins a message of several lines, and ends it."""


def turns(commands: Sequence[str], draft: Callable[[], str]) -> Iterator[str]:
    """What is said, turn by turn, until there is no more. draft: what the line begins with, from `/edit`.

    A script is UTF-8, whatever the system's own encoding is. Raises UsageError if it is not.
    """
    if sys.stdin.isatty():
        yield from _typed(commands, draft)
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


def _typed(commands: Sequence[str], draft: Callable[[], str]) -> Iterator[str]:
    """Lines typed with an editor: history, completion of commands, several lines by Alt-Enter or a fence. Ctrl-C drops
    what was typed, Ctrl-D ends the chat.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

    from specdec_cli.display.terminal import raw

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
        completer=WordCompleter(list(commands), sentence=True),
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
