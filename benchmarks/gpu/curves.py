"""What passes cost: t(n) of target and draft model, by context, and the cost of changing the size of passes.

    python3 benchmarks/gpu/curves.py --target T.gguf --draft D.gguf --out FOLDER [--seconds 300]

Writes FOLDER/curves.json, and prints a file for profiles/hardware.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from common import add_models, machine, markdown

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.types import CATCH_UP_ROWS
from specdec_cli.llama import host
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.pass_probes import pass_laps
from specdec_cli.llama.placement import Placement
from specdec_cli.measure import suites

LONGEST = 64
READING = (128, 512)
"""Longer passes, in which a draft model catches up."""
VERIFY_POINTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
DRAFT_POINTS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
ORDERS = ((1,), (2,), (3,), (4,), (2, 1), (2, 1, 1, 1), (5,), (4, 5), (5, 1), (9,), (8, 9))
"""Repeated sequences of pass sizes: one size, and sizes that change, as when drafts have different lengths."""
SHOWN = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64)

Laps = dict[int, list[float]]


def measure(
    models: Mapping[str, str], contexts: Sequence[int], threads: int, seconds: float, longest: int = LONGEST
) -> Iterator[dict[str, Any]]:
    """Time passes of every size at every context; yields one curve at a time.

    The time is divided evenly; each size is timed at least once, however long it takes.
    """
    each = seconds / (len(models) * len(contexts))
    sizes = [*range(1, longest + 1), *READING]
    for role, path in models.items():
        with closing(Model(Path(path), Placement(), Interrupt())) as model:
            text = [token for prompt in suites.load("python") for token in model.tokenize(prompt.text, False)]
            rows = longest if role == "target" else min(CATCH_UP_ROWS, longest)
            for fill in contexts:
                with closing(LlamaContext.open(model, fill + max(sizes), rows, threads, Interrupt())) as context:
                    laps = pass_laps(context, text, sizes, len(sizes), each, fill=fill)
                    orders = planning(context, text) if fill == min(contexts) else []
                yield {"model": role, "context": fill, **summary(laps), "planning": orders}


def planning(context: LlamaContext, text: Sequence[int], rounds: int = 100) -> list[dict[str, Any]]:
    """Median milliseconds of each pass in each of ORDERS. llama.cpp plans a pass again if its size changed, and a GPU
    replays a pass that it has seen twice. The orders take turns; each is repeated until it settles, then timed once.
    """
    laps: dict[tuple[int, ...], list[list[float]]] = {
        order: [[] for _ in order] for order in ORDERS if max(order) <= context.max_rows
    }
    context.decode(text[:64])
    for order, times in [*laps.items()] * rounds:
        for turn in range(SETTLED + 1):
            for size, its in zip(order, times, strict=True):
                before = perf_counter()
                context.decode(text[:size], all_rows=True)
                if turn == SETTLED:
                    its.append(perf_counter() - before)
                context.rewind(64)
    return [{"order": order, "ms": [statistics.median(its) * 1000 for its in own]} for order, own in laps.items()]


def summary(laps: Laps) -> dict[str, dict[str, float]]:
    """For each size, the shortest lap and the median, in milliseconds, and the number of laps."""
    return {
        "least_ms": {str(n): min(found) * 1000 for n, found in laps.items()},
        "median_ms": {str(n): statistics.median(found) * 1000 for n, found in laps.items()},
        "laps": {str(n): len(found) for n, found in laps.items()},
    }


def points(curve: Mapping[str, Any], wanted: Sequence[int]) -> dict[int, float]:
    """Milliseconds at some sizes. No pass takes longer than a larger one, because it could be padded."""
    least, found = float("inf"), {}
    for n, ms in sorted(((int(n), ms) for n, ms in curve["least_ms"].items()), reverse=True):
        least = found[n] = min(least, ms)
    return {n: found[n] for n in wanted if n in found}


def chosen(curves: Sequence[Mapping[str, Any]], role: str) -> Mapping[str, Any]:
    """The curve of a model at the shortest context."""
    return min((curve for curve in curves if curve["model"] == role), key=lambda curve: int(curve["context"]))


def table(data: Mapping[str, Any]) -> str:
    """The shortest lap of a pass over n tokens, in milliseconds."""
    passes, changes = [], []
    for curve in data["curves"]:
        least = curve["least_ms"]
        cells = [f"{least[str(n)]:.2f}" if str(n) in least else "" for n in SHOWN]
        passes.append([curve["model"], curve["context"], *cells])
        for one in curve["planning"]:
            sizes, ms = ", ".join(map(str, one["order"])), ", ".join(f"{each:.3f}" for each in one["ms"])
            changes.append([sizes, curve["model"], ms])
    of_passes = markdown(["model", "context", *(f"n={n}" for n in SHOWN)], passes)
    return f"{of_passes}\n\n{markdown(['sizes of passes, in turn', 'model', 'ms each'], changes)}"


def hardware_yaml(data: Mapping[str, Any], other_ms: float | None = None) -> str:
    """A file for profiles/hardware. other_ms: the time of a step outside passes, if measured."""
    target, draft = chosen(data["curves"], "target"), chosen(data["curves"], "draft")
    names = " with ".join(Path(path).stem for path in data["models"].values())
    description = f"{data['machine'].partition(';')[0]}; {names} as draft"
    laps = target["laps"].values()
    source = f"benchmarks/gpu/curves.py: {data['machine']}; {target['context']} tokens in the cache, "
    source += f"the shortest of {min(laps)} to {max(laps)} laps."
    indented = textwrap.fill(source, 112, initial_indent="  ", subsequent_indent="  ")
    lines = [f'description: "{description}"', "basis: measured", "source: >", indented]
    alike = {each["order"][0]: each["ms"][0] for each in target["planning"] if len(each["order"]) == 1}
    measured = {
        "verify_ms": points(target, VERIFY_POINTS),
        "repeated_ms": alike,
        "draft_ms": points(draft, DRAFT_POINTS),
    }
    for key, found in measured.items():
        lines.append(f"{key}: {{{', '.join(f'{n}: {ms:.3g}' for n, ms in found.items())}}}")
    if other_ms is not None:
        lines.append(f"other_ms: {other_ms:.2g}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_models(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=540, help="time limit, without loading the models")
    parser.add_argument("--threads", type=int, default=host.physical_cores())
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 4096, 16384])
    parser.add_argument("--longest", type=int, default=LONGEST, help="n goes from 1 to this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    models = {"target": options.target, "draft": options.draft}
    found: dict[str, Any] = {"machine": machine(), "models": models, "curves": []}
    for curve in measure(models, options.contexts, options.threads, options.seconds, options.longest):
        found["curves"].append(curve)
        least = curve["least_ms"]["1"]
        print(f"{curve['model']} {curve['context']}: 1 token {least:.3f} ms", file=sys.stderr, flush=True)
        (options.out / "curves.json").write_text(json.dumps(found) + "\n")
    print(table(found), hardware_yaml(found), sep="\n\n")


if __name__ == "__main__":
    main()
