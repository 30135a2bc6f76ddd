"""`specdec edit`: changes a file by instruction. The file is the prediction of the answer."""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.error_reporting import interruptible
from specdec_cli.cli.loading import loaded, require_template
from specdec_cli.cli.output import print_parts, print_run_report, require_writable_file, show_answer, write_file
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.terminal import can_paint, raw
from specdec_cli.gguf.chat_template import final_answer
from specdec_cli.gguf.thoughts import Thoughts, opens_thoughts
from specdec_cli.user_files import is_file

if TYPE_CHECKING:
    from specdec_cli.llama.model import Model

_MOST_BYTES = 1 << 22
_SPARE = 256
"""Tokens that an answer may have beyond half as many again as the text."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$", re.MULTILINE)
_DIFF = re.compile(r"(?:diff|patch)\b|.*\n(?:diff --git |--- .*\n\+\+\+ |@@ -)")
"""What follows the fence of a diff."""
_LEFT_OUT = re.compile(
    r"""(?![^\w\#/*;%-]*\.{3}(?![\s.]|unchanged\b|\W{0,3}\w+(?:\ \w|\W{0,3}\.\.)))  # JavaScript's spread: {...rest}
    \W{0,20}(?:\.{3}|…)\W*(?:the\ )?(?:rest|existing|remaining|previous|other|unchanged|same)\b
    |\s*\{?(?:\#|//|/\*|<!--|--|;|%)\W*(?:(?:\.{3}|…)\W*$
        |(?:the\ )?(?:rest\ of|(?:existing|remaining)\ code)\b.*(?:unchanged|same|omitted|here|\.{3}|…)\W*$)""",
    re.IGNORECASE | re.VERBOSE,
)
"""A line in place of others, such as "# ... rest unchanged ...". An ellipsis alone is Python."""
_MOST_LEFT_OUT = 200
"""Characters of a line that are searched for that: the time grows with their square."""
_SAID = re.compile(
    r"\s*(?:sure|certainly|of course|okay|here(?:['\u2019]s| is| are| you go)|below|the (?:changed|updated|modified))\b"
    r"[^\n]*:\s*\n",
    re.IGNORECASE,
)
"""What a model says before a text that it doesn't put in a code block."""
_STYLES = {"@": "cyan", "+": "green", "-": "red"}


@dataclass(frozen=True, slots=True)
class Passage:
    """The lines of a file to change, and the text before and after them. text: the lines, ending in LF."""

    path: Path
    data: bytes
    before: str
    lines: str
    behind: str

    @property
    def text(self) -> str:
        return self.lines.replace("\r\n", "\n")

    @classmethod
    def read(cls, path: Path, lines: str | None) -> Passage:
        """lines: FIRST:LAST, counted from 1; None: all. Raises UsageError if it isn't text or has no such lines."""
        if not is_file(path):
            raise UsageError(f"{path} is not a file", "Name a text file.")
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", "Check its path and permissions.") from None
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB", "Name a smaller file.")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not UTF-8 text", "Convert it first, with iconv.") from None
        if "\0" in text:
            raise UsageError(f"{path} is not text: it holds zero bytes", "Name a text file.")
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        every = _LINE.findall(text[len(mark) :])
        first, last = _range(lines, len(every)) if every else (1, 0)
        before, chosen, behind = ("".join(part) for part in (every[: first - 1], every[first - 1 : last], every[last:]))
        if not chosen.strip():
            raise UsageError(f"there is nothing to change in {path}", "Name a file, or lines, with text.")
        return cls(path, data, mark + before, chosen, behind)

    def prompt(self, instruction: str) -> str:
        part = bool(self.before.strip("\ufeff") or self.behind)
        what, whole = ("these lines of", "all of these lines") if part else ("the file", "the whole file")
        body, fence = self.text if self.text.endswith("\n") else f"{self.text}\n", fence_around(self.text)
        return (
            f"Change {what} {self.path.name} as follows: {instruction}\n\nKeep everything else exactly as it is. "
            f"Reply with {whole}, changed, in one code block, and nothing else.\n\n{fence}\n{body}{fence}"
        )

    def require_ordinary(self, model: Model) -> None:
        """Raise UsageError for a line with a special token: the model would read that token, not the line's text."""
        if model.tokenize(self.text) == model.tokenize(self.text, special=False):
            return
        for number, line in enumerate(_LINE.findall(self.text), self.before.count("\n") + 1):
            if model.tokenize(line) != model.tokenize(line, special=False):
                what = f"line {number} of {self.path} has a special token of this model, which can't copy it"
                raise UsageError(what, "Leave that line out with --range, or use another model.")

    def changed(self, answer: str, thinks: bool = False) -> str:
        """The whole file with the changed text in place of the old one: the code block of the answer that is most like
        it, or the whole answer. thinks: whether the prompt opens the thoughts. Raises SpecdecError if neither can be
        the changed text, where that ends is unclear, or if a line in it stands for others.
        """
        answer = final_answer(answer)
        _, rest = Thoughts(thinks).push(answer, ended=True)
        answer = answer[len(answer[: len(answer) - len(rest)].rstrip(" \t")) :]  # the first line keeps its indentation
        answer = answer if "\r" in self.text else answer.replace("\r\n", "\n")
        old, words = self.text.strip("\n"), Counter(self.text.split())
        blank, _, ending = self.text.partition(old)

        def counts(text: str) -> tuple[int, int, int]:
            """The words that it shares with the old text, those that it leaves out, and those that it adds."""
            found = Counter(text.split())
            return (words & found).total(), (words - found).total(), (found - words).total()

        def score(text: str) -> float:
            shared, left_out, added = counts(text)
            # Much may be deleted, but an explanation adds words. After the old text comes the changed one.
            return 0.5 if text.strip("\n") == old else shared / (shared + left_out / 4 + added)

        is_diff = bool(_DIFF.match(f"{self.path.suffix[1:]}\n{self.text}"))
        clear = {text: usable for text, usable in _blocks(answer, is_diff) if text.strip()}
        shared, left_out, added = counts(answer)
        alone = not _SAID.match(answer) or bool(_SAID.match(old))
        if alone and 2 * shared >= left_out + added and not any(text.strip("\n") == old for text in clear):
            clear[answer.strip("\n")] = True
        text = max(clear, key=score, default="")
        if not clear.get(text):
            what = "the answer doesn't contain the changed text: nothing was written"
            raise SpecdecError(what, "Word the instruction differently, or use a larger model.")
        if _left_out(text) > _left_out(old):
            what = "the answer leaves out a part of the text: nothing was written"
            raise SpecdecError(what, "Change fewer lines (--range A:B), or use a larger model.")
        text = text.rstrip("\n") + ending
        return self.before + self._with_endings(text if text.startswith("\n") else blank + text) + self.behind

    def _with_endings(self, text: str) -> str:
        """A changed text, in which the old lines keep their endings and new lines get the file's most frequent one."""
        own, old, new = (_LINE.findall(each) for each in (self.lines, self.text, text))
        if self.data.count(b"\r\n") * 2 > self.data.count(b"\n"):
            text = text.replace("\n", "\r\n")
        lines = _LINE.findall(text)
        for start, at, count in difflib.SequenceMatcher(None, old, new).get_matching_blocks():
            lines[at : at + count] = own[start : start + count]
        return "".join(lines)

    def require_same(self) -> None:
        try:
            same = self.path.read_bytes() == self.data
        except OSError:
            same = False
        if not same:
            raise SpecdecError(f"{self.path} has changed since it was read", "Nothing was written. Run the edit again.")


def _left_out(text: str) -> int:
    return sum(bool(_LEFT_OUT.match(line[:_MOST_LEFT_OUT])) for line in text.splitlines())


def _blocks(answer: str, is_diff: bool) -> Iterator[tuple[str, bool]]:
    """The outermost code blocks of an answer, and whether each can be the text: a diff can't, unless the text is_diff.
    Also texts that may be a block, but can't be used: from the first fence to the end of each later block, because
    fences without a language may belong to nested blocks, and what no fence closes.
    """
    first: re.Match[str] | None = None
    outer, depth = first, 0
    for fence in _FENCE.finditer(answer):
        if not outer:
            if fence[1][0] == "`" or fence[2]:  # tildes alone may underline a heading
                outer, depth = fence, 1
                first = first or outer
        elif fence[1].startswith(outer[1]):
            depth += 1 if fence[2] else -1
            if depth == 0:
                yield answer[outer.end() + 1 : fence.start()], is_diff or not _DIFF.match(answer, outer.start(2))
                if first and first is not outer:
                    yield answer[first.end() + 1 : fence.start()], False
                outer = None
    if first and outer:
        yield answer[first.end() + 1 :], False


def fence_around(text: str) -> str:
    """Marks the beginning and the end of a text in a prompt; longer than any such fence in the text."""
    return "`" * max([3, *(len(found[1]) + 1 for found in _FENCE.finditer(text) if found[1][0] == "`")])


def _range(lines: str | None, count: int) -> tuple[int, int]:
    """The first and the last line of a range. Raises UsageError."""
    first, colon, last = (":" if lines is None else lines).partition(":")
    if not colon or not all(re.fullmatch("[0-9]{0,9}", part) for part in (first, last)):
        raise UsageError(f"the range of lines cannot be {lines!r}", "Give FIRST:LAST, as in --range 10:20.")
    start, end = int(first or 1), int(last or count)
    if not 1 <= start <= min(end, count):
        raise UsageError(f"there are no lines {lines} in a file of {count}", "Give FIRST:LAST, as in --range 10:20.")
    return start, min(end, count)


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
        speculative = SpeculativeConfig(prediction=expected if settings.chain.reads_texts else None)
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
    fewer, lines_before = old.count("\n") - new.count("\n"), len(_LINE.findall(passage.text))
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
    lines = difflib.unified_diff(_LINE.findall(old), _LINE.findall(new), f"a/{name}", f"b/{name}")
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def show_diff(lines: list[str]) -> None:
    """In colours on a terminal; elsewhere with the file's own bytes, for `git apply` and `patch`."""
    from rich.text import Text

    if not sys.stdout.isatty():
        raw(sys.stdout).buffer.write("".join(lines).encode(errors="surrogateescape"))
        return
    for number, line in enumerate(lines):
        style = "bold" if number < 2 else _STYLES.get(line[0], "dim")
        print_parts(Text(line.rstrip("\r\n"), style))
