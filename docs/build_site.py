"""Build the documentation as a site in build/docs/site. A broken link or anchor is an error, and so is another host.

python docs/build_site.py

The pages lie as in the repository, so one link works in both. The site has no other files of the repository: a link to
one becomes plain text.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "docs"
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "training/*.md", "profiles/demo/*.md", "benchmarks/gpu/*.md")
    for path in ROOT.glob(pattern)
)
FOREIGN = re.compile(r'<(?:script|link|img|iframe)\b[^>]+="(?:https?:)?//[^"]+')
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#]+)[^)]*\)")


def for_site(page: Path) -> str:
    """The text of a page, without links to files that aren't pages. A broken link stays, for the build to find."""

    def kept(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        return link[1] if target.exists() and target not in PAGES else link[0]

    return LINK.sub(kept, page.read_text("utf-8"))


def main() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    for page in PAGES:
        copy = BUILD / "pages" / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(for_site(page), "utf-8")
    for other in (*(ROOT / "docs").glob("*.svg"), ROOT / "docs" / "site.css"):
        shutil.copy(other, BUILD / "pages" / "docs")
    shutil.copy(ROOT / "docs" / "zensical.toml", BUILD)
    build = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(BUILD / "zensical.toml")]
    if subprocess.run(build, check=False).returncode:
        sys.exit(1)
    for page in (BUILD / "site").rglob("*.html"):
        if found := FOREIGN.search(page.read_text("utf-8")):
            sys.exit(f"{page} loads from another host: {found[0]}")


if __name__ == "__main__":
    main()
