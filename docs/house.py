"""Make docs/house.svg: the folders of the package, drawn from their imports. tests/test_house.py holds their order.

python docs/house.py
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "specdec_cli"
ROWS = (
    ("cli",),
    ("server", "display", "chat"),
    ("make_drafts", "measure", "pairs"),
    ("engine",),
    ("weights", "settings"),
    ("drafters", "draft_length", "constraints", "llama", "gguf"),
    ("decoding",),
)
WIDTH, STEP, BOX = 920, 92, 46


def imported(folder: str) -> set[str]:
    """The other folders that the files of a folder import from."""
    found = set()
    for path in (PACKAGE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specdec_cli"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name.split(".")[1] for name in names}
    return found & {name for row in ROWS for name in row} - {folder}


def picture() -> str:
    """The SVG: a box for each folder, as wide as the root of its lines, and a line to each folder that it uses."""
    boxes: dict[str, tuple[float, float, float, int]] = {}
    for number, row in enumerate(ROWS):
        lines = {
            name: sum(len(p.read_text("utf-8").splitlines()) for p in (PACKAGE / name).rglob("*.py")) for name in row
        }
        widths = {name: max(128.0, 2.6 * count**0.5) for name, count in lines.items()}
        gap = (WIDTH - sum(widths.values())) / (len(row) + 1)
        left = gap
        for name in row:
            boxes[name] = (left, 12 + number * STEP, widths[name], lines[name])
            left += widths[name] + gap
    parts = []
    for name, (x, y, width, _) in boxes.items():
        used = imported(name) - (set() if name in ROWS[-2] else {"decoding"})  # which everything uses
        for other in sorted(used):
            left, top, wide, _ = boxes[other]
            parts.append(f'<path d="M{x + width / 2:.0f} {y + BOX:.0f} L{left + wide / 2:.0f} {top:.0f}" class="use"/>')
    for name, (x, y, width, count) in boxes.items():
        middle = x + width / 2
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="6" class="folder"/>')
        parts.append(f'<text x="{middle:.0f}" y="{y + 20:.0f}" class="name">{name}/</text>')
        parts.append(f'<text x="{middle:.0f}" y="{y + 36:.0f}" class="lines">{count:,} lines</text>')
    style = (
        ".folder{fill:#f6f8fa;stroke:#57606a}.use{stroke:#8c959f;stroke-width:1;opacity:.6}"
        "text{font-family:sans-serif;text-anchor:middle;fill:#24292f}.name{font-size:14px;font-weight:600}.lines{font-size:11px}"
    )
    height = 12 + len(ROWS) * STEP - (STEP - BOX) + 12
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join(
        [
            head,
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    (Path(__file__).parent / "house.svg").write_text(picture(), "utf-8")
