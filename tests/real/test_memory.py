"""The memory that `check` and the report of a run tell of, against what a process really took at its peak."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from driver import specdec

MARGIN = 0.15
CHILD = """
import re, sys
from pathlib import Path
import jinja2, numpy, typer.testing
from specdec_cli.engine import engine
from specdec_cli.cli import app, run
from specdec_cli.display import live, run_report as tables
from specdec_cli.llama import library  # which starts llama.cpp

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

before = peak()
done = typer.testing.CliRunner().invoke(app.app, ["run", *sys.argv[1:]])
print(done.stderr, file=sys.stderr)
print(peak() - before)
sys.exit(done.exit_code)
"""
UNITS = {"MB": 1e6, "GB": 1e9}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")


def measured(folder: Path, n_tokens: int, *args: object) -> tuple[int, float]:
    """Bytes that loading and running a prompt of about so many tokens took at the peak, and what the report said."""
    text = folder / "prompt.txt"
    text.write_text(" one two three four five six seven eight nine ten" * (n_tokens // 10))
    command = [sys.executable, "-c", CHILD, "-v", "--raw", "-f", text, "-n", 24, *args]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=240, env=wide)
    assert done.returncode == 0, done.stderr
    said = re.search(r"^memory +([\d.]+) (MB|GB): ", done.stderr, re.MULTILINE)
    assert said, done.stderr
    return int(done.stdout), float(said[1]) * UNITS[said[2]]


def estimated(target: Path, draft: Path, n_ctx: int) -> int:
    done = specdec("check", target, draft, "-c", n_ctx, "--json", timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)["memory"]["needed"]


# Both a prompt that fills llama.cpp's batches, and one that does not.
@pytest.mark.parametrize(("n_ctx", "n_tokens"), [(1024, 50), (4096, 700)])
@pytest.mark.parametrize("names", [("qwen", "qwen_small"), ("smol", "smol")])
def test_a_pairs_memory(names, n_ctx, n_tokens, request, tmp_path):
    target, draft = (request.getfixturevalue(name) for name in names)
    peak, reported = measured(tmp_path, n_tokens, "-m", target, "-md", draft, "-c", n_ctx, "-k", 4)
    needed = estimated(target, draft, n_ctx)
    print(f"{names[0]}, -c {n_ctx}: check {needed / 1e6:,.0f} MB, report {reported / 1e6:,.0f}, peak {peak / 1e6:,.0f}")
    assert needed == pytest.approx(peak, rel=MARGIN)
    assert reported == pytest.approx(peak, rel=MARGIN)
