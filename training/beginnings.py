"""Prompts for training drafts of the bundled target: beginnings of functions, classes and files of a corpus.

python -m training.beginnings --documents corpus/documents.jsonl.xz --out prompts.jsonl
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path

from training import corpus

COUNT, PROJECT_SHARE = 3500, 0.05
MIN, MAX, LINES = 40, 700, 40
"""Least and most characters of a prompt, and its most lines."""


def beginnings(source: str, dice: random.Random) -> Iterator[str]:
    """The beginning of each function and class of a module, and of the module; each ends at the end of a line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = source.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and len(node.body) > 1:
            last = (node.body[0].end_lineno or node.lineno) + dice.randrange(0, 4)
            yield textwrap.dedent("\n".join(lines[node.lineno - 1 : min(last, node.end_lineno or last)]))
    yield "\n".join(lines[: dice.randrange(6, 24)])


def prompts(documents: Path, count: int) -> list[str]:
    """Up to `count` prompts, at most PROJECT_SHARE of them from one project."""
    dice, found, of_project = random.Random(11), dict[str, None](), dict[str, int]()
    sources = [each for each in corpus.load(documents) if each.kind == "python"]
    dice.shuffle(sources)
    for document in sources:
        usable = [text.rstrip() for text in beginnings(document.text, dice) if MIN < len(text) < MAX]
        for text in dice.sample(usable, min(2, len(usable))):
            if text.count("\n") < LINES and of_project.get(document.project, 0) < PROJECT_SHARE * count:
                of_project[document.project] = of_project.get(document.project, 0) + (text not in found)
                found[text] = None
        if len(found) >= count:
            break
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=COUNT)
    chosen = parser.parse_args()
    rows = [json.dumps({"prompt": text}) + "\n" for text in prompts(chosen.documents, chosen.count)]
    chosen.out.write_text("".join(rows), "utf-8")
    print(f"{len(rows):,} prompts")


if __name__ == "__main__":
    main()
