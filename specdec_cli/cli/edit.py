"""`specdec edit`: changes a file by instruction. The file is the prediction of the answer."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.edit_passage import Passage, fence_around, lines_of
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.loading import loaded, require_template
from specdec_cli.cli.output import print_parts, print_run_report, require_writable_file, show_answer, write_file
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.terminal import can_paint, close, raw
from specdec_cli.gguf.thoughts import opens_thoughts

_SPARE = 256
"""Tokens that an answer may have beyond half as many again as the text."""
_STYLES = {"@": "cyan", "+": "green", "-": "red"}


@opt.takes(*opt.ALL, max_tokens=f"1.5 times the text's tokens + {_SPARE}")
def edit(
    given: opt.Given,
    file: Annotated[Path, typer.Argument(help="The file to change.")],
    instruction: Annotated[str, typer.Argument(help="What to change, in words.")],
    lines: Annotated[str | None, typer.Option("--range", metavar="A:B", help="Change only these lines.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the file without asking.")] = False,
    verbose: opt.Verbose = False,
) -> None:
    """The model rewrites the file, quickly where nothing changes. The diff goes to stdout.

    On a terminal, specdec asks before it writes. In a pipe, it writes only with --write.
    """
    from specdec_cli.weights.model_pair import check_pair

    passage = Passage.read(file, lines)
    if not instruction.strip():
        raise UsageError("the instruction is empty", 'Say what to change: specdec edit app.py "Add type hints."')
    if write or _can_ask():
        require_writable_file(file)
    settings = given.settings()
    pair = check_pair(settings)
    fix = "Use an instruct model: specdec edit -p qwen2.5-coder-1.5b ..."
    require_template(pair, "it cannot follow an instruction", fix)
    from specdec_cli.display.parts import EDIT_STYLES
    from specdec_cli.settings.options import SamplingParams, SpeculativeConfig

    with interruptible() as interrupt, loaded(settings, pair, interrupt) as engine:
        session = engine.session()
        passage.require_ordinary(session.models.target.model)
        prompt, tokens = passage.prompt(instruction), len(session.tokenize(passage.text, raw=True))
        most = settings.max_tokens if given.chosen("max_tokens") else tokens * 3 // 2 + _SPARE
        n_ctx, read = settings.ctx or session.models.target.model.n_ctx_train, len(session.tokenize(prompt))
        if 0 < n_ctx < read + tokens:
            raise UsageError(
                f"the edit needs {read + tokens:,} tokens, the context holds {n_ctx:,}",
                "Change fewer lines: --range A:B.",
            )
        fence = fence_around(passage.text)
        expected = f"{fence}\n{passage.text.rstrip()}\n{fence}"
        speculative = SpeculativeConfig(prediction=expected if settings.cascade.reads_texts else None)
        answer = session.start(prompt, SamplingParams(max_tokens=most), speculative)
        answer.result.unmeasured = ""
        error = show_answer(session, answer, shown=can_paint(sys.stdout), styles=EDIT_STYLES)
        print_run_report(session, answer, verbose, legend_too=False)
        thinks = opens_thoughts(answer.result.prompt, session.models.target.model.piece)
        if error:
            raise error
    if interrupt.exit_code:
        print("Nothing was written.", file=sys.stderr)
        raise typer.Exit(interrupt.exit_code)
    if (reason := answer.result.finish_reason) != "stop":
        fix = "Use a larger -c" if reason == "context" else "Give it more tokens (-n)"
        raise SpecdecError("the answer was cut off: nothing was written", f"{fix}, or fewer lines (--range).")
    old, new = passage.data.decode(), passage.changed(answer.result.text, thinks)
    if new == old:
        print("Nothing changed.", file=sys.stderr)
        return
    show_diff(diff(old, new, file.name if file.is_absolute() or ".." in file.parts else file.as_posix()))
    fewer, lines_before = old.count("\n") - new.count("\n"), len(lines_of(passage.text))
    if 2 * fewer > lines_before:
        what = f"the changed text has {fewer:,} lines fewer than the {lines_before:,} before"
        if write:
            raise SpecdecError(f"{what}: nothing was written", "If that's right, run it on a terminal without --write.")
        print(f"note: {what}", file=sys.stderr)
    if write or (_can_ask() and typer.confirm(f"Write {file}?", default=False, err=True)):
        passage.require_same()
        write_file(file, new)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def diff(old: str, new: str, name: str) -> list[str]:
    """A unified diff, in lines with their ends."""
    name += "\t" if " " in name else ""  # ends the name for `patch`
    lines = difflib.unified_diff(lines_of(old), lines_of(new), f"a/{name}", f"b/{name}")
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def show_diff(lines: list[str]) -> None:
    """In colours on a terminal; elsewhere with the file's own bytes, for `git apply` and `patch`. If nobody reads it,
    the file can still be written.
    """
    from rich.text import Text

    if not sys.stdout.isatty():
        try:
            raw(sys.stdout).buffer.write("".join(lines).encode(errors="surrogateescape"))
            sys.stdout.flush()
        except BrokenPipeError:
            close(sys.stdout)
        return
    for number, line in enumerate(lines):
        style = "bold" if number < 2 else _STYLES.get(line[0], "dim")
        print_parts(Text(line.rstrip("\r\n"), style))
