"""The part of a file that `specdec edit` changes: what the model is asked, and the changed text in its answer."""

from __future__ import annotations

import difflib
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.chat_template import final_answer
from specdec_cli.gguf.thoughts import Thoughts
from specdec_cli.user_files import decoded, is_file

if TYPE_CHECKING:
    from specdec_cli.llama.model import Model

_MAX_BYTES = 1 << 22
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
_MAX_LEFT_OUT = 200
"""Characters of a line that are searched for that: the time grows with their square."""
_SAID = re.compile(
    r"\s*(?:sure|certainly|of course|okay|here(?:['\u2019]s| is| are| you go)|below|the (?:changed|updated|modified))\b"
    r"[^\n]*:\s*\n",
    re.IGNORECASE,
)
"""What a model says before a text that it doesn't put in a code block."""


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
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", "Check its path and permissions.") from None
        if len(data) > _MAX_BYTES:
            raise UsageError(f"{path} has more than {_MAX_BYTES >> 20} MiB", "Name a smaller file.")
        text = decoded(data, str(path), path)
        if "\0" in text:
            raise UsageError(f"{path} is not text: it holds zero bytes", "Name a text file.")
        mark = "\ufeff" if data.startswith(BOM_UTF8) else ""
        every = lines_of(text)
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
        for number, line in enumerate(lines_of(self.text), self.before.count("\n") + 1):
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
        own, old, new = map(lines_of, (self.lines, self.text, text))
        if self.data.count(b"\r\n") * 2 > self.data.count(b"\n"):
            text = text.replace("\n", "\r\n")
        lines = lines_of(text)
        for _, start, end, at, to in difflib.SequenceMatcher(None, old, new).get_opcodes():
            if end - start == to - at:  # equal, or replaced: of long texts, difflib overlooks frequent equal lines
                lines[at:to] = (
                    own[i] if old[i] == new[j] else lines[j]
                    for i, j in zip(range(start, end), range(at, to), strict=True)
                )
        return "".join(lines)

    def require_same(self) -> None:
        try:
            same = self.path.read_bytes() == self.data
        except OSError:
            same = False
        if not same:
            raise SpecdecError(f"{self.path} has changed since it was read", "Nothing was written. Run the edit again.")


def _left_out(text: str) -> int:
    return sum(bool(_LEFT_OUT.match(line[:_MAX_LEFT_OUT])) for line in text.splitlines())


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


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends; a CR is a part of the line."""
    return _LINE.findall(text)


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
