"""How the house is built: imports point one way, and nothing in it is large or has the name of something else."""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specdec_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
ALLOWED = {
    "decoding": set(),
    "constraints": {"decoding"},
    "draft_length": {"decoding"},
    "drafters": {"decoding", "draft_length"},
    "evaluation": {"decoding", "draft_length"},
    "llama": {"decoding"},
    "models": {"decoding"},
    "hub": {"decoding", "models"},
    "store": {"decoding", "draft_length", "evaluation", "models", "hub"},
    "display": {"decoding", "evaluation"},
    "training": {"decoding", "evaluation", "models"},
}
ALLOWED["engine"] = set(ALLOWED) - {"display"}
ALLOWED["server"] = {"constraints", "decoding", "engine", "display", "store"}
ALLOWED["cli"] = set(ALLOWED)
"""Which folders a folder may import from, besides itself."""


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, `from x import y` as both x and x.y."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder):
    files = list((PACKAGE / folder).rglob("*.py"))
    assert len(files) > 1
    for path in files:
        seen = {name.split(".")[1] for name in imports(path) if name.startswith("specdec_cli.")} & set(ALLOWED)
        assert seen <= {folder} | ALLOWED[folder], f"{path.name} imports {seen - ALLOWED[folder]}"


def test_no_other_folder_holds_code():
    assert {path.parent.name for path in FILES} == {*ALLOWED, "specdec_cli"}


@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("llama_cpp", {"llama"}),
        ("huggingface_hub", {"hub"}),
        ("click", set()),
        ("typer", {"cli"}),
        ("greenlet", {"engine"}),
        ("llguidance", {"constraints"}),
        ("gguf", {"training"}),
        ("torch", {"training"}),
        ("starlette", {"server"}),
        ("uvicorn", {"server"}),
    ],
)
def test_foreign_packages_are_imported_in_their_folders_alone(module, only):
    """Click is not imported: Typer vendors it."""
    users = [path for path in FILES if any(name.split(".")[0] == module for name in imports(path))]
    assert {path.parent.name for path in users} == only


def test_text_leaves_in_one_way():
    """Rich has one console, and few write to a stream itself: our own codes, an answer to a file, an editor."""
    users = {"Console": set(), "raw": set(), "echo": set(), "__stdout__": set(), "__stderr__": set(), "buffer": set()}
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in users:
                    users[name].add(path.stem)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("__std"):
                users[node.attr].add(path.stem)
    assert users.pop("raw") == {"chat_input", "plain", "safe_console", "status_line"}
    assert not any(users.values()), users


def test_models_are_loaded_in_one_place():
    """Where a file that is new is loaded on trial first, and in the trial."""
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Model":
                assert path.name in ("model_loading.py", "head_trial.py"), path


def test_nobody_asks_which_class_a_policy_or_a_drafter_is():
    kinds = {
        node.name for path in FILES if path.parent.name in ("draft_length", "drafters") for node in classes_of(path)
    }
    kinds = {name for name in kinds if name.endswith(("Length", "Drafter"))}
    assert {"AutoLength", "FixedLength", "ModelDrafter", "ChainDrafter"} <= kinds
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not asked & kinds, f"{path.name} asks for {asked & kinds}"


def classes_of(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]


def test_no_two_files_and_no_two_public_classes_share_a_name():
    files = [path.name for path in FILES if path.name != "__init__.py"]
    classes = [node.name for path in FILES for node in classes_of(path) if not node.name.startswith("_")]
    for names in (files, classes):
        assert not {name for name in names if names.count(name) > 1}


LARGE = {"AutoLength": 17}
"""Classes with more than 15 methods: a length policy has ten to implement before it does anything of its own."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_function_or_class_is_large(path):
    assert len(path.read_text().splitlines()) <= 300
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            assert len(methods) <= LARGE.get(node.name, 15), f"{node.name} has {len(methods)} methods"
