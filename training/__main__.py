"""The whole recipe of the bundled pair and its heads: `python -m training`, which `make train` runs.

It starts from the files of profiles/demo, trains them further, and writes the result to WORK/pair. Every stage is a
command that also works on its own. A finished stage is skipped, and training commands continue from their checkpoints,
so after an interruption, run the same command again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from training import corpus

ROOT = Path(__file__).parent.parent
MINUTES = {"finetune": 62, "distill": 14, "eagle3": 36, "medusa": 8}
"""Minutes of training for the bundled files; recording answers, corpus and prompts take extra time."""
TOKENS = {"distill": 440_000, "eagle3": 1_200_000, "medusa": 440_000}
"""How many tokens of the target's answers a draft learns from."""
PROMPTS = {"prompts.jsonl": 3_500, "more-prompts.jsonl": 10_000}


def stages(work: Path, packages: Sequence[Path], share: float) -> Iterator[tuple[Path, list[object]]]:
    """Each stage's result and command. share: of the full text and time; each stage trains for at least 4 minutes."""
    documents, tuned, pair = work / "corpus" / corpus.DOCUMENTS, work / "tuned", work / "pair"
    target, prompts, more = tuned / "target.gguf", *(work / name for name in PROMPTS)
    read = ["--packages", *packages] if packages else []
    yield documents, ["training.corpus", "--out", documents.parent, "--megabytes", max(3.0, share * 120), *read]
    minutes = max(4.0, share * MINUTES["finetune"])
    trained = ["--documents", documents, "--minutes", minutes, "--work", work / "checkpoint", "--out", tuned]
    yield tuned / "draft.gguf", ["training.finetune", *trained]
    for name, count in PROMPTS.items():
        counted = ["--count", max(40, int(share * count))]
        yield work / name, ["training.beginnings", "--documents", documents, "--out", work / name, *counted]

    def draft(kind: str, prompts: Path, *options: object) -> tuple[Path, list[object]]:
        out = pair / ("draft.gguf" if kind == "distill" else f"{kind}.gguf")
        asked = ["--prompts", prompts, "--held-out", "python", "--tokens", int(share * TOKENS[kind]), "-n", 128]
        spent = ["--minutes", max(4.0, share * MINUTES[kind]), "-o", out]
        return out, ["specdec_cli", "draft", kind, "-m", target, *options, *asked, *spent]

    yield draft("distill", prompts, "--from", tuned / "draft.gguf", "--lr", 0.002)
    yield draft("eagle3", more, "--width", 192, "--words", 2048)
    yield draft("medusa", prompts, "--words", 1536)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "training", help="folder for everything made")
    parser.add_argument("--packages", type=Path, nargs="*", default=[], help="folders such as site-packages to read")
    parser.add_argument("--share", type=float, default=1.0, help="of the full time and text: 0.02 to try it")
    chosen = parser.parse_args()
    work = chosen.work.resolve()
    (work / "pair").mkdir(parents=True, exist_ok=True)
    for result, command in stages(work, [each.resolve() for each in chosen.packages], chosen.share):
        if (finished := result.with_name(f".{result.name}.done")).exists() and result.exists():
            continue
        before = time.monotonic()
        done = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=ROOT, check=False)
        if done.returncode or not result.exists():
            sys.exit(f"{command[0]} failed with exit code {done.returncode}; run the same command to continue")
        print(f"{result.name}: {time.monotonic() - before:.1f} s, {result.stat().st_size / 1e6:.1f} MB", flush=True)
        finished.touch()
    (work / "pair" / "target.gguf").write_bytes((work / "tuned" / "target.gguf").read_bytes())
    print(f"The pair and its heads are in {work / 'pair'}.")


if __name__ == "__main__":
    main()
