"""What README and docs tell people to type: every command parses, those on models of one's own run."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from driver import DRAFT, TARGET, call

from specdec_cli.cli.app import COMMANDS, app, load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUP = typer.main.get_command(app)


def commands():
    """Each `specdec ...` of a block or of inline code, without comments, pipes and redirections."""
    for page in PAGES:
        text = page.read_text("utf-8")
        blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        inline = re.findall(r"`(?:\.venv/bin/)?(specdec [a-z][^`\n]*)`", text)
        for line in [*blocks.splitlines(), *inline]:
            if match := re.search(r"(?:^|\| )(?:\.venv/bin/)?specdec ([a-z].*)", line):
                words = shlex.split(match[1], comments=True)
                cut = next((i for i, word in enumerate(words) if word in (">", "|", "&&")), len(words))
                if "..." not in words[:cut][1:-1] and words[0] != "COMMAND":
                    yield page.name, tuple(words[:cut])


FOUND = sorted(set(commands()))


def test_there_are_commands():
    assert len(FOUND) > 25 and {"README.md", "drafters.md", "measuring.md"} <= {page for page, _ in FOUND}


@pytest.mark.parametrize(
    ("page", "words"), FOUND, ids=lambda value: " ".join([value] if isinstance(value, str) else value)
)
def test_it_parses(page, words):
    """The command and its options exist, and take such values. What is left out, as in `specdec rm`, is no mistake."""
    context, (name, *rest) = typer.Context(GROUP), words
    command = load(name) if name in COMMANDS else None
    while command is not None and hasattr(command, "commands") and rest:
        command, rest = command.commands.get(rest[0]), rest[1:]
    assert command is not None, words
    if rest and not any(word.isupper() for word in rest):
        command.make_context(name, list(rest), parent=context)


RUNS = [
    words
    for _, words in FOUND
    if words[0] == "run" and "big.gguf" in words and not {"-f", "self", "--rpc"} & set(words)
]


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_it_runs(words):
    files = {"big.gguf": TARGET, "small.gguf": DRAFT, "smaller.gguf": DRAFT}
    done = call(*[files.get(word, word) for word in words], "-n", "4", SPECDEC_DRAFTER=None)
    assert done.exit_code == 0, done.stderr
