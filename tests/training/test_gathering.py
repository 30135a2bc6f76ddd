"""From folders of installed packages to documents, without copies, each on one side of the split."""

import random
from collections import Counter
from pathlib import Path

import pytest

from training import corpus
from training.corpus import HELD_OUT, TRAIN, Document, distinct, gather, installed, kind_of, part_of

WORDS = ("alpha", "beta", "gamma", "delta", "width", "height", "total", "result", "values", "name", "path", "table")


def source(seed, functions=12):
    """Some Python that no other seed has."""
    dice = random.Random(seed)
    parts = []
    for _ in range(functions):
        name, first, second = dice.choices(WORDS, k=3)
        number = dice.randrange(1000)
        parts.append(
            f"def {name}_{number}({first}, {second}_{number}):\n"
            f'    """Return the {first} of the {second}, which is {" ".join(dice.choices(WORDS, k=6))}."""\n'
            f"    if {first} is None:\n        raise ValueError('{' '.join(dice.choices(WORDS, k=4))}')\n"
            f"    return {dice.choice(WORDS)}({first}, {second}_{number})\n"
        )
    return "\n\n".join(parts)


def install(folder: Path, name: str, licence: str, files: dict[str, str]) -> None:
    """What pip leaves of a package: its files, and a dist-info that lists them."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nLicense-Expression: {licence}\n"
    )
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in [*files, f"{info.name}/METADATA"]))


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site-packages"
    install(
        folder,
        "Good_Package",
        "MIT",
        {
            **{f"good/module_{i}.py": f"# Copyright me\n{source(i)}" for i in range(60)},
            KEPT_BACK: source(99),
            "good/copy.py": source(3),
            "good/_vendor/other.py": source(100),
            "good/tests/test_it.py": source(101),
            "good/data.json": "{}",
        },
    )
    install(folder, "closed", "LicenseRef-Proprietary", {"closed/module.py": source(200)})
    install(folder, "shared", "GPL-3.0-only", {"shared/module.py": source(201)})
    return folder


KEPT_BACK = next(f"good/late_{i}.py" for i in range(10_000) if part_of("good-package", f"good/late_{i}.py") == HELD_OUT)


def names(documents):
    return {document.path for document in documents}


def test_only_permissive_packages_and_what_is_their_own(site):
    left_out = Counter()
    found = list(distinct(gather(installed([site]), 1, left_out), left_out))
    assert {document.project for document in found} == {"good-package"}
    expected = {f"good/module_{i}.py" for i in range(60)} | {"good/tests/test_it.py", KEPT_BACK}
    # Of the two that are alike, the one that comes first by its hash stays.
    assert names(found) in (expected, expected - {"good/module_3.py"} | {"good/copy.py"})
    assert left_out == {"a copy": 1}
    assert not any("Copyright" in document.text for document in found)


def test_no_project_brings_more_than_its_share(site):
    left_out = Counter()
    found = list(gather(installed([site]), 1, left_out, most=20_000))
    assert 15_000 < sum(len(document.text) for document in found) <= 20_000
    assert left_out["its project has brought enough"] == 63 - len(found)


def test_the_same_package_in_two_folders_counts_once(site, tmp_path):
    install(tmp_path / "other", "good.package", "MIT", {"good/late.py": source(300)})
    assert [project.name for project in installed([site, tmp_path / "other"])].count("good-package") == 1


def test_building_writes_documents_and_the_list_of_licences(site, tmp_path):
    out = tmp_path / "corpus"
    corpus.build(out, [site], None, 4.0, 1)
    found = list(corpus.load(out / corpus.DOCUMENTS))
    assert {document.part for document in found} == {TRAIN, HELD_OUT}
    listing = (out / corpus.LICENSES).read_text()
    assert f"| good-package | 1.0 | MIT | {len(found)} |" in listing
    assert "closed (LicenseRef-Proprietary: not permissive" in listing
    assert "shared (GPL-3.0-only: not permissive" in listing


def test_a_corpus_without_anything_held_out_is_refused(tmp_path):
    install(tmp_path / "few", "few", "MIT", {"few/one.py": source(1)})
    with pytest.raises(SystemExit, match="too short to hold any out"):
        corpus.build(tmp_path / "out", [tmp_path / "few"], None, 1.0, 1)


NOT_READ = (
    *("package/module.pyc", "package/third_party/module.py", "package/tests/fixtures/module.py"),
    *("package/LICENSE.txt", "package-1.0.dist-info/notes.txt", "../../bin/script.py"),
)


def test_which_files_are_read():
    assert kind_of("package/module.py") == "python" and kind_of("package/guide.rst") == "prose"
    assert [path for path in NOT_READ if kind_of(path)] == []


def test_near_copies_are_left_out_and_relatives_are_not():
    lines = source(1, 40).split("\n")
    changed = [line.replace("alpha", "omega") if i % 25 == 0 else line for i, line in enumerate(lines)]
    indented = ["    " + line for line in lines]
    related = lines[: len(lines) // 4] + source(2, 40).split("\n")
    texts = {"first": lines, "changed": changed, "indented": indented, "related": related}
    left_out = Counter()
    documents = [Document("\n".join(text), "project", name, "python", TRAIN) for name, text in texts.items()]
    kept = distinct(documents, left_out)
    assert names(kept) == {"first", "related"}
    assert left_out == {"a near copy": 1, "a copy": 1}


def test_the_split_is_by_hash_and_about_a_fiftieth():
    parts = [part_of("project", f"module_{i}.py") for i in range(20_000)]
    assert 0.017 < parts.count(HELD_OUT) / len(parts) < 0.023
    assert parts[:50] == [part_of("project", f"module_{i}.py") for i in range(50)]
    assert [part_of("other", f"module_{i}.py") for i in range(2000)] != parts[:2000]
