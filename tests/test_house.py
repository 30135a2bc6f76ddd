"""How the house is built: imports point one way, and nothing in it is large or has the name of something else."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specdec_cli"
ALLOWED = {
    "decoding": set(),
    "draft_length": {"decoding"},
    "drafters": {"decoding", "draft_length"},
    "evaluation": {"decoding", "draft_length"},
    "llama": {"decoding"},
    "models": {"decoding"},
    "hub": {"decoding", "models"},
    "store": {"decoding", "draft_length", "evaluation", "models", "hub"},
    "display": {"decoding", "evaluation"},
}
ALLOWED["engine"] = set(ALLOWED) - {"display"}
ALLOWED["cli"] = set(ALLOWED)
"""Which folders a folder may import from, besides itself."""


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, `from x import y` as both x and x.y."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def users(module: str) -> set[str]:
    files = {p: imports(p) for p in PACKAGE.rglob("*.py")}
    return {
        p.relative_to(PACKAGE).as_posix() for p, names in files.items() if any(n.split(".")[0] == module for n in names)
    }


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder):
    files = list((PACKAGE / folder).rglob("*.py"))
    assert len(files) > 1
    for path in files:
        seen = {name.split(".")[1] for name in imports(path) if name.startswith("specdec_cli.")} & set(ALLOWED)
        assert seen <= {folder} | ALLOWED[folder], f"{path.name} imports {seen - ALLOWED[folder]}"


def test_no_other_folder_holds_code():
    assert {p.parent.name for p in PACKAGE.rglob("*.py")} == {*ALLOWED, "specdec_cli"}


def test_llama_cpp_is_imported_in_its_folder_alone():
    assert users("llama_cpp") and all(path.startswith("llama/") for path in users("llama_cpp"))


def test_the_hub_is_imported_in_its_folder_alone():
    assert users("huggingface_hub") and all(path.startswith("hub/") for path in users("huggingface_hub"))


def test_click_is_not_imported():
    """Typer vendors it."""
    assert not users("click")
    assert users("typer")


def classes_in(*folders: str) -> set[str]:
    files = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    return {
        node.name for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    }


def test_nobody_asks_which_class_a_policy_or_a_drafter_is():
    kinds = {name for name in classes_in("draft_length", "drafters") if name.endswith(("Length", "Drafter"))}
    assert {"AutoLength", "FixedLength", "ModelDrafter", "ChainDrafter"} <= kinds
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not asked & kinds, f"{path.name} asks for {asked & kinds}"


def test_no_two_files_and_no_two_public_classes_share_a_name():
    files = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert not {name for name in files if files.count(name) > 1}
    names = [
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert not {name for name in names if names.count(name) > 1}


LARGE = {"AutoLength": 17}
"""Classes with more than 15 methods: a length policy has ten to implement before it does anything of its own."""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_file_function_or_class_is_large(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            assert len(methods) <= LARGE.get(node.name, 15), f"{node.name} has {len(methods)} methods"
