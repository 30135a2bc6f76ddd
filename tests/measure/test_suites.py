from pathlib import Path

import pytest

from specdec_cli.decoding.errors import UsageError
from specdec_cli.measure import suites
from specdec_cli.measure.suites import SuitePrompt
from specdec_cli.pairs import profiles

ROW = '{"prompt": "a"}\n'


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """The user's folder of suites, which is empty, as the working folder is."""
    folder = profiles.config_dir() / "suites"
    folder.mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def read(name, content):
    """The prompts of such a file in the working folder."""
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return suites.load(name)


def refused(use, *args):
    with pytest.raises(UsageError) as caught:
        use(*args)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300 and caught.value.hint
    return f"{caught.value} {caught.value.hint}"


def test_the_built_in_suites():
    bundled = {name: suites.load(name) for name in suites.builtin()}
    own_category = {"chat", "code", "creative", "edit", "reasoning", "structured", "summarisation", "translation"}
    assert set(bundled) == own_category | {"edits", "python"} and all(suites.builtin().values())
    assert all(len(prompts) >= 8 for prompts in bundled.values())
    prompts = [prompt for suite in bundled.values() for prompt in suite]
    assert len({prompt.text for prompt in prompts}) == len({prompt.id for prompt in prompts}) == len(prompts)
    assert all({prompt.category for prompt in bundled[name]} == {name} for name in own_category)
    categories = [prompt.category for prompt in bundled["python"]]
    assert set(categories) == {"functions", "classes", "tests", "scripts", "loops"}
    assert min(map(categories.count, categories)) >= 6
    assert all(prompt.text == prompt.text.rstrip() for name in ("python", "edits") for prompt in bundled[name])


def test_a_name_is_a_suite_of_the_users_then_one_built_in_then_a_file(config):
    assert len(read("chat", "from the file\n")) >= 8
    assert suites.load("./chat") == [SuitePrompt("1", "chat", "from the file")]
    (config / "chat.yaml").write_text("- hello\n- 'two'\n")
    assert suites.load("chat") == [SuitePrompt("1", "chat", "hello"), SuitePrompt("2", "chat", "two")]


def test_an_unknown_suite(config):
    (config / "mine.yaml").write_text("- hello\n")
    assert suites.load("mine") == [SuitePrompt("1", "mine", "hello")] and "mine" not in suites.builtin()
    for source, hint in (("mien", "'mine'"), ("../suites/code", "Suites: chat, code")):
        error = refused(suites.load, source)
        assert "no prompt suite or file" in error and source in error and hint in error


LINES = '  def f(x):\n\n \t\r\n{"prompt": 1}\r\n# not a comment\u2028still line 5'
JSON = """\
{"prompt": "a\\nb", "category": "x", "id": "first"}
{"prompt": "c\u2028d", "id": 7, "reference": ["ignored"]}
{"prompt": "e", "id": null, "category": null}

"""
SPEC_BENCH = """\
{"question_id": 81, "category": "writing", "turns": ["Write a post.", "Rewrite it."]}
{"question_id": 242, "category": "qa", "turns": ["Who?"], "reference": ["Nobody"]}
"""
HUMANEVAL = """\
{"task_id": "HumanEval/0", "prompt": "f", "entry_point": "f", "canonical_solution": "x", "test": "y"}
{"task_id": "MBPP/3", "prompt": "g", "category": "given"}
{"task_id": "alone", "prompt": "h"}
{"task_id": 11, "prompt": "i"}
"""
YAML = """description: Mine.
prompts:
  - {id: a, category: x, prompt: one}
  - id: 2024
    prompt: |
      two
        lines
  - prompt: three
"""


@pytest.mark.parametrize(
    ("name", "content", "prompts"),
    [
        ("own.txt", LINES, [("1", "own", "  def f(x):"), ("4", "own", '{"prompt": 1}'),
                            ("5", "own", "# not a comment\u2028still line 5")]),
        ("own.md", b"\xef\xbb\xbfone\rtwo\n", [("1", "own", "one"), ("2", "own", "two")]),
        ("own.JSON", JSON, [("first", "x", "a\nb"), ("7", "own", "c\u2028d"), ("3", "own", "e")]),
        ("own.jsonl", SPEC_BENCH, [("81", "writing", "Write a post."), ("242", "qa", "Who?")]),
        ("own.jsonl", HUMANEVAL, [("HumanEval/0", "humaneval", "f"), ("MBPP/3", "given", "g"),
                                  ("alone", "own", "h"), ("11", "own", "i")]),
        *((name, YAML, [("a", "x", "one"), ("2024", "own", "two\n  lines\n"), ("3", "own", "three")])
          for name in ("own.yaml", "own.YML")),
    ],
)  # fmt: skip
def test_the_suffix_says_how_a_file_is_read(name, content, prompts):
    assert read(name, content) == [SuitePrompt(*prompt) for prompt in prompts]


MALFORMED = {
    "empty text": ("a.txt", "", "has no prompts"),
    "not UTF-8": ("a.txt", b"caf\xe9\n", "a.txt is not UTF-8 text: byte 0xe9 at 3"),
    "JSON syntax": ("a.jsonl", ROW + "\n{'prompt': 1}\n", "a.jsonl, line 3 is not JSON: Expecting property name"),
    "JSON list": ("a.jsonl", ROW + "[]\n", "a.jsonl, line 2 is not a JSON object"),
    "blank prompt": ("a.jsonl", '{"prompt": " \\n"}', "a.jsonl, line 1: the prompt is empty"),
    "no turns": ("a.jsonl", '{"question_id": 1, "turns": []}', "line 1: prompt: Expected str, got null"),
    "id not a text": ("a.jsonl", '{"prompt": "a", "id": true}', "a.jsonl, line 1: id: Expected int | str"),
    "surrogate": ("a.jsonl", '{"prompt": "a\\ud800"}', "a.jsonl, line 1: the prompt has half a surrogate pair"),
    "id like a number": ("a.jsonl", '{"prompt": "a", "id": 2}\n' + ROW, "line 2 and line 1 both have the id '2'"),
    "YAML syntax": ("a.yaml", "prompts:\n  - prompt: [1\n", "expected ',' or ']' at line 3"),
    "YAML text": ("a.yaml", "just words\n", "a.yaml has no list of prompts"),
    "YAML prompt not a text": ("a.yaml", "- one\n- yes\n", "a.yaml, prompt 2: prompt: Expected str, got bool"),
    "unknown key": ("a.yaml", "promts:\n  - prompt: a\n", "unknown key 'promts'"),
    "category of a reserved name": ("a.jsonl", ROW + '{"prompt": "b", "category": "all"}', "can be named 'all'"),
    "unknown key of a prompt": ("a.yaml", "- {prompt: a, catgory: b}\n", "unknown key 'catgory'"),
}


@pytest.mark.parametrize(("name", "content", "what"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file(name, content, what):
    assert what in refused(read, name, content)


def test_what_cannot_be_opened_or_is_too_large(monkeypatch):
    for source in ("a\0b", "."):
        assert "can't read the prompts" in refused(suites.load, source)
    monkeypatch.setattr(suites, "_MAX_BYTES", 1 << 20)
    assert "over 1 MB" in refused(read, "model.gguf", b"a" * ((1 << 20) + 1))
    assert len(read("model.gguf", b"a" * (1 << 20))) == 1


UNEVEN = [SuitePrompt(f"{c}{n}", c, "text") for c, count in (("a", 6), ("b", 1), ("c", 3)) for n in range(count)]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, "a0 a1 a2 a3 a4 a5 b0 c0 c1 c2"),
        ({"categories": ["c", "b", "c"]}, "b0 c0 c1 c2"),
        ({"per_category": 2}, "a0 a1 b0 c0 c1"),
        ({"limit": 8}, "a0 a1 a2 a3 b0 c0 c1 c2"),
        ({"limit": 4, "per_category": 1}, "a0 b0 c0"),
    ],
)
def test_selection(options, ids):
    assert " ".join(prompt.id for prompt in suites.select(UNEVEN, **options)) == ids


def test_an_unknown_category():
    error = refused(suites.select, suites.load("python"), ["functions", "clases"])
    assert "'clases'" in error and "'classes'" in error
