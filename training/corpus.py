"""The corpus: Python source and documentation of installed packages under permissive licences.

    python -m training.corpus --out FOLDER [--packages FOLDER ...] [--megabytes N]

It reads Python's standard library, and the packages of the running interpreter or of --packages. It writes
documents.jsonl.xz, one document per line, and LICENSES.md, which lists what was read, and what was left out and why.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import lzma
import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from training.cleaning import PROSE, PYTHON, clean
from training.licences import Licence, decide

DOCUMENTS, LICENSES = "documents.jsonl.xz", "LICENSES.md"
TRAIN, HELD_OUT = "train", "held-out"

_KINDS = {".py": PYTHON, ".rst": PROSE, ".md": PROSE, ".txt": PROSE}
_FOREIGN = re.compile(
    r"_*(vendor(ed|ized)?(_packages)?|third[_-]?party|3rdparty|extern(al|als)?|bundled)", re.IGNORECASE
)
_DATA = re.compile(
    r"(test_?data|fixtures?|snapshots|__snapshots__|locales?|__pycache__|node_modules|static)", re.IGNORECASE
)
_NOT_PROSE = re.compile(
    r"(licen[cs]es?|copying|notice|authors?|contributors?|changes|change_?log|history|news|thanks|credits|version"
    r"|requirements.*|cmakelists|sources|top_level|entry_points|robots|vendor|manifest)\b",
    re.IGNORECASE,
)
_TEST = re.compile(r"(^|/)(tests?|testing)/|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_STDLIB_WITHOUT = {"site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "ensurepip"}
_MIN_PROSE = 1000

_SHINGLE = 3
_LINE = 12
"""Documents are compared by their runs of 3 lines of at least 12 characters."""
_MAX_SEEN = 0.4
HELD_OUT_SHARE = 0.02
PROJECT_BYTES, TEST_SHARE = 12_000_000, 0.25
"""A project contributes at most 12 MB, a quarter of them tests, so that none dominates. In a corpus under 144 MB, no
project is more than a twelfth."""
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Document:
    """One file. path: relative to its project. kind: python or prose. part: train or held-out."""

    text: str
    project: str
    path: str
    kind: str
    part: str


@dataclass
class Project:
    """A project with its files. kept, kept_bytes: those in the corpus."""

    name: str
    version: str
    licence: Licence
    files: list[tuple[str, Path]] = field(default_factory=list, repr=False)
    kept: int = 0
    kept_bytes: int = 0


def kind_of(path: str) -> str | None:
    """PYTHON or PROSE, or None for files that don't belong in a corpus: vendored copies, whose licence isn't stated
    here, test data, legal texts, change logs.
    """
    place = PurePosixPath(path)
    folders = place.parts[:-1]
    kind = _KINDS.get(place.suffix.lower())
    if kind is None or any(_FOREIGN.fullmatch(part) or _DATA.fullmatch(part) for part in folders):
        return None
    if any(part.endswith((".dist-info", ".egg-info")) or part == ".." for part in folders):
        return None
    return None if kind == PROSE and _NOT_PROSE.match(place.stem) else kind


def installed(folders: Sequence[Path]) -> Iterator[Project]:
    """The distributions in folders such as site-packages, each name once, with their files."""
    seen = set()
    for folder in folders:
        for found in sorted(importlib.metadata.distributions(path=[str(folder)]), key=_name):
            name = _name(found)
            if name in seen:
                continue
            seen.add(name)
            listed = {str(PurePosixPath(file)): Path(str(file.locate())) for file in found.files or ()}
            yield Project(name, found.version, decide(found.metadata), sorted(listed.items()))


def _name(found: importlib.metadata.Distribution) -> str:
    return re.sub(r"[-_.]+", "-", found.metadata["Name"] or "unnamed").lower()


def standard_library(folder: Path) -> Project:
    """Python's standard library, without installed packages."""
    files = [
        (path.relative_to(folder).as_posix(), path)
        for path in sorted(folder.rglob("*.py"))
        if not _STDLIB_WITHOUT & set(path.relative_to(folder).parts)
    ]
    version = ".".join(map(str, sys.version_info[:2]))
    return Project("python-standard-library", version, Licence("PSF-2.0", True), files)


def read(path: Path, kind: str) -> tuple[str, str]:
    """A file's cleaned text, or why there is none."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return "", "not text"
    if kind == PROSE and len(text) < _MIN_PROSE:
        return "", "too short or too long"
    return clean(text, kind)


def gather(
    projects: Iterable[Project], workers: int, left_out: Counter[str], most: int = PROJECT_BYTES
) -> Iterator[Document]:
    """The cleaned documents of the permissive projects, at most `most` bytes of each."""
    with ProcessPoolExecutor(workers) as pool:
        for project in projects:
            if not project.licence.permissive:
                continue
            chosen = [(name, path, kind) for name, path in project.files if (kind := kind_of(name))]
            # Tests come last; otherwise, files are in the order of their hashes, so that any part is typical.
            chosen.sort(key=lambda entry: (bool(_TEST.search(entry[0])), _hash(project.name, entry[0])))
            total = tests = 0
            for at in range(0, len(chosen), _AT_ONCE):
                part = chosen[at : at + _AT_ONCE]
                texts = pool.map(read, [c[1] for c in part], [c[2] for c in part], chunksize=8)
                for (name, _, kind), (text, reason) in zip(part, texts, strict=True):
                    size = len(text.encode("utf-8"))
                    is_test = bool(_TEST.search(name))
                    if reason:
                        left_out[reason] += 1
                    elif total + size > most or (is_test and tests + size > TEST_SHARE * most):
                        left_out["its project has brought enough"] += 1
                    else:
                        total += size
                        tests += size * is_test
                        yield Document(text, project.name, name, kind, part_of(project.name, name))
                if total > 0.97 * most:
                    left_out["its project has brought enough"] += max(0, len(chosen) - at - _AT_ONCE)
                    break


def _hash(*parts: str) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(parts).encode("utf-8"), digest_size=8).digest(), "big")


def part_of(project: str, path: str) -> str:
    """Whether a file is for training or held out; the same on every machine."""
    return HELD_OUT if _hash("part", project, path) < HELD_OUT_SHARE * 2**64 else TRAIN


def distinct(documents: Iterable[Document], left_out: Counter[str]) -> Iterator[Document]:
    """The documents without copies and near copies of earlier ones.

    A document is a near copy if more than two fifths of its runs of three lines have been seen before. Short lines
    do not count, nor does a line's indentation.
    """
    whole: set[int] = set()
    runs: set[int] = set()
    for document in documents:
        key = _hash(" ".join(document.text.split()))
        if key in whole:
            left_out["a copy"] += 1
            continue
        whole.add(key)
        lines = [stripped for line in document.text.split("\n") if len(stripped := line.strip()) >= _LINE]
        own = {hash(tuple(lines[at : at + _SHINGLE])) for at in range(max(1, len(lines) - _SHINGLE + 1))}
        if len(own & runs) > _MAX_SEEN * len(own):
            left_out["a near copy"] += 1
            continue
        runs |= own
        yield document


def write(documents: Iterable[Document], path: Path) -> None:
    """Write one line of JSON per document. The file appears only when it is complete."""
    unfinished = path.with_suffix(".new")
    with lzma.open(unfinished, "wt", encoding="utf-8", preset=4) as file:
        for document in documents:
            file.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
    unfinished.replace(path)


def load(path: Path) -> Iterator[Document]:
    """Read documents that `write` has written."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield Document(**json.loads(line))


def listing(projects: Sequence[Project], left_out: Counter[str]) -> str:
    """LICENSES.md: every project read, its version and licence, and what was left out."""
    used = sorted((p for p in projects if p.kept), key=lambda p: p.name)
    total = sum(p.kept_bytes for p in used)
    refused = sorted((p for p in projects if not p.licence.permissive), key=lambda p: p.name)
    lines = [
        "# What the models were trained on",
        "",
        f"{len(used)} projects, {sum(p.kept for p in used):,} documents, {total / 1e6:,.1f} MB of text, under the",
        "licences that the projects' own metadata state. Legal notices were cut off before training.",
        "",
        "| project | version | licence | documents | kB |",
        "|---|---|---|---:|---:|",
        *(f"| {p.name} | {p.version} | {p.licence.name} | {p.kept:,} | {p.kept_bytes / 1e3:,.0f} |" for p in used),
        "",
        "## Left out",
        "",
        f"Projects for their licence: {'; '.join(map(_refusal, refused)) or 'none'}.",
        "",
        "Files: " + "; ".join(f"{count:,} {reason}" for reason, count in left_out.most_common()) + ".",
        "",
    ]
    return "\n".join(lines)


def _refusal(project: Project) -> str:
    stated = " ".join(project.licence.name.split())[:40]
    return f"{project.name} ({stated}{': ' if stated else ''}{project.licence.why})"


def build(out: Path, folders: Sequence[Path], stdlib: Path | None, megabytes: float, workers: int) -> None:
    """Gather, deduplicate, write. megabytes: the most text; projects are read in the order of their hashes."""
    left_out: Counter[str] = Counter()
    projects = [*([standard_library(stdlib)] if stdlib else []), *installed(folders)]
    projects.sort(key=lambda p: (p.name != "python-standard-library", _hash("order", p.name)))
    by_name = {project.name: project for project in projects}
    kept: list[Document] = []
    size = 0
    gathered = gather(projects, workers, left_out, min(PROJECT_BYTES, int(megabytes * 1e6 / 12)))
    for document in distinct(gathered, left_out):
        kept.append(document)
        size += len(document.text)
        by_name[document.project].kept += 1
        by_name[document.project].kept_bytes += len(document.text.encode("utf-8"))
        if size >= megabytes * 1e6:
            break
    held = sum(document.part == HELD_OUT for document in kept)
    if not held:
        raise SystemExit("corpus: the text is too short to hold any out; use more --packages or --megabytes")
    out.mkdir(parents=True, exist_ok=True)
    (out / LICENSES).write_text(listing(projects, left_out), "utf-8")
    write(kept, out / DOCUMENTS)
    print(f"corpus: {len(kept):,} documents, {size / 1e6:.1f} M characters, {held} of them held out; {dict(left_out)}")


def main() -> None:
    paths = sysconfig.get_paths()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--packages", type=Path, nargs="*", help="folders such as site-packages; default: our own")
    parser.add_argument("--megabytes", type=float, default=400, help="of text, at most (400)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that read files")
    chosen = parser.parse_args()
    folders = [Path(paths["purelib"])] if chosen.packages is None else chosen.packages
    build(chosen.out, folders, Path(paths["stdlib"]), chosen.megabytes, chosen.workers)


if __name__ == "__main__":
    main()
