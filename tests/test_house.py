"""How the house is built: imports point one way, without circles, and foreign packages have one home each."""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "specdec_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = [
    {"decoding"},
    {"draft_length", "constraints", "llama", "gguf"},
    {"drafters"},
    {"settings"},
    {"weights"},
    {"engine"},
    {"pairs"},
    {"measure", "chat"},
    {"make_drafts"},
    {"display"},
    {"server"},
    {"cli"},
]
"""A folder imports from those above it in this list, and from the shared files beside the folders."""
SHARED = {"user_files", "yaml_reader", "json_store", "bounded_child"}
"""The files beside the folders that any folder may use. They know nothing but `decoding`."""


def folder_of(path: Path) -> str:
    """The folder of a file within the package; the name of a file beside the folders."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


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


def ours(path: Path) -> set[str]:
    """The folders of the package, and files beside them, that a file imports from."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("specdec_cli.")} - {"__version__"}


def test_every_folder_has_a_layer():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set().union(*LAYERS)


@pytest.mark.parametrize("number", range(len(LAYERS)), ids=lambda number: "-".join(sorted(LAYERS[number])))
def test_imports_point_one_way(number):
    below = set().union(*LAYERS[:number])
    for folder in LAYERS[number]:
        files = list((PACKAGE / folder).rglob("*.py"))
        assert len(files) > 1
        for path in files:
            beyond = ours(path) - below - SHARED - {folder}
            assert not {name for name in beyond if (PACKAGE / name).is_dir()}, f"{path.name} imports {beyond}"


def test_shared_files_know_errors_and_costs_alone():
    for path in (PACKAGE / f"{name}.py" for name in SHARED):
        assert ours(path) <= {"decoding"} | SHARED, path.name


def test_no_files_import_each_other():
    """At run time or for types: a circle is one even where Python survives it."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    edges = {name: {other for other in imports(path) if other in modules} for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in edges[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in modules:
        visit(name, ())


@pytest.mark.parametrize(
    ("module", "only"),
    [
        ("llama_cpp", {"llama"}),
        ("huggingface_hub", {"pairs"}),
        ("click", set()),
        ("typer", {"cli"}),
        ("greenlet", {"engine"}),
        ("llguidance", {"constraints"}),
        ("gguf", {"make_drafts"}),
        ("torch", {"make_drafts"}),
        ("llm", {"llm_models"}),
        ("starlette", {"server"}),
        ("uvicorn", {"server"}),
        ("platformdirs", {"user_files"}),
    ],
)
def test_foreign_packages_have_one_home(module, only):
    """Click is not imported: Typer vendors it."""
    users = [path for path in FILES if any(name.split(".")[0] == module for name in imports(path))]
    assert {folder_of(path) for path in users} == only


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
    assert users.pop("raw") == {"chat_session", "edit", "live", "terminal"}
    assert not any(users.values()), users


def test_models_are_loaded_in_one_place():
    """Where a file that is new is loaded on trial first, and in the trial."""
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Model":
                assert path.name in ("model_loading.py", "trial_child.py"), path
