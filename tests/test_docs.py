"""README and docs: each command parses, and those on the reader's own models run. Each link leads somewhere."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer
from driver import DRAFT, TARGET, call

from specdec_cli.cli.app import COMMANDS, app, load

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUP = typer.main.get_command(app)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


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
    context = typer.Context(GROUP, **GROUP.context_settings)  # a command keeps its names of --help
    name, *rest = words
    command = load(name) if name in COMMANDS else None
    while command is not None and hasattr(command, "commands") and rest:
        command, rest = command.commands.get(rest[0]), rest[1:]
    assert command is not None, words
    if rest:
        command.make_context(name, list(rest), parent=context)


RUNS = [
    words
    for _, words in FOUND
    if words[0] == "run" and "big.gguf" in words and not {"-f", "--prediction", "self", "--rpc"} & set(words)
]


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_it_runs(words):
    files = {"big.gguf": TARGET, "small.gguf": DRAFT, "smaller.gguf": DRAFT}
    done = call(*[files.get(word, word) for word in words], "-n", "4", SPECDEC_DRAFTER=None)
    assert done.exit_code == 0, done.stderr


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """On GitHub. `make docs` checks the site, whose anchors another program makes."""
    for path, anchor in LINK.findall(BLOCK.sub("", page.read_text("utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_readme_and_site_list_every_page():
    """In the same groups."""
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    navigation = (ROOT / "docs" / "zensical.toml").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8").partition("## More")[2]
    assert pages <= set(re.findall(r"docs/[\w-]+\.md", navigation)) & set(re.findall(r"docs/[\w-]+\.md", readme))
    groups = re.findall(r'"(\w+)" = \[', navigation)
    assert groups == re.findall(r"^- \*\*(\w+):?\*\*", readme, re.MULTILINE)


def test_the_reference_is_that_of_the_docstrings():
    """`python docs/reference.py` makes it again."""
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    assert reference["PAGE"].read_text("utf-8") == reference["page"]()
