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
SITE = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


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
    if rest and not any(word.isupper() for word in rest):
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


def links(text):
    """(path, anchor) of each relative link, without those of code blocks."""
    return LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", SITE["PAGES"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """On GitHub. `make docs` checks the site, whose anchors another program makes."""
    for path, anchor in links(page.read_text("utf-8")):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("page", SITE["PAGES"], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_site_links_only_to_what_it_has(page):
    pictures = set((ROOT / "docs").glob("*.svg"))
    for path, _ in links(SITE["for_site"](page)):
        assert not path or (page.parent / path).resolve() in {*SITE["PAGES"], *pictures}, path


def test_a_link_to_another_file_becomes_its_text(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "a.py").touch()
    rest = "[home](https://x.org), [above](#top), ![picture](a.svg), [missing](b.md)"
    page.write_text(f"[`tests/`](a.py), {rest}")
    assert SITE["for_site"](page) == f"`tests/`, {rest}"


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
