"""Write the results of all machines into docs/benchmarks.md and the README, and draw docs/speed.svg.

python benchmarks/bench/page.py
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import hindsight
import results
from cells import AGAIN, ALONE, DEFAULT, MODELS, SUITES
from common import markdown
from measure import MAX_NOISE
from results import ROOT, CellFigures, Figures, Ratio, Results

from specdec_cli.decoding.costs import Curve
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.measure import acceptance_traces, hardware
from specdec_cli.measure.simulate import Text

PAGE, README, CHART = ROOT / "docs" / "benchmarks.md", ROOT / "README.md", ROOT / "docs" / "speed.svg"
MIN, MIN_OF_BEST = 0.98, 0.95
"""Cells below these, of the target alone and of the best method, are named on the page."""
_SUITES = (*SUITES, "python")
_PROFILES = ROOT / "profiles"
_RECORDED = {
    "Qwen2.5-Coder 1.5B + 0.5B, all suites": "recordings/qwen2.5-coder/greedy.json.gz",
    "the same, edits": "recordings/qwen2.5-coder/edit.json.gz",
    "bundled, Python": "demo/recordings/greedy.json.gz",
}
_MACHINES = ("xeon-amx-2core", "laptop-8core", "m3-max", "rtx-4090", "h200")
_CURVES = {
    "AMD EPYC, AVX-512": {
        "SmolLM2 135M": ("smollm2-135m", "epyc-2core-smollm2"),
        "Qwen2.5-Coder 1.5B": ("qwen2.5-coder", "epyc-2core-qwen-coder"),
    },
    "Intel Xeon, AMX": {"Qwen2.5-Coder 1.5B": ("qwen2.5-coder", "xeon-amx-2core")},
}
"""By machine and model, the folder of its recordings and its cost curve."""
_SEARCH = Curve({1: 15e-6})
"""Seconds that `ngram` takes to search for a draft."""
_WORK = {
    "edit": "editing code and text",
    "edits": "small edits",
    "code": "writing code",
    "chat": "chat",
    "summarisation": "summaries",
    "structured": "JSON and tables",
    "reasoning": "reasoning",
    "translation": "translation",
    "python": "Python (completion)",
}


def marked(cell: CellFigures, text: str) -> str:
    """A figure with its marks: the machine was noisy, or only a quick measurement was made."""
    return text + ("\\*" if cell.noise > MAX_NOISE else "") + ("†" if cell.quick else "")


def of_machine(found: Results) -> str:
    machine, cells = found.machine, found.cells.values()
    dates = sorted({cell.when for cell in cells})
    commits = sorted({cell.commit for cell in cells if cell.commit})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if name != "specdec")
    about = f"{machine.name}, {machine.cores} cores, {machine.memory_gb} GB, kernels {machine.kernels}"
    which = [f"commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits"] if commits else []
    return "; ".join([about, versions, when, *which])


def models_of(found: Results) -> list[str]:
    """The models with cells, in the order of the page."""
    known = [model.name for model in MODELS]
    names = {cell.model for cell in found.cells.values()}
    return [*filter(names.__contains__, known), *sorted(names - {*known})]


def speeds(found: Results) -> Iterator[str]:
    """The default's speed by kind of work and model, at each temperature."""
    yield f"{of_machine(found)}."
    models = models_of(found)
    for temperature in sorted({cell.temperature for cell in found.cells.values()}):
        rows = []
        for suite in _SUITES:
            row = [found.cells.get(f"{model} | {suite} | {temperature:g}") for model in models]
            if any(row):
                rows.append([_WORK[suite], *(_speed(cell) for cell in row)])
        title = "Greedy" if temperature == 0 else f"At temperature {temperature:g}, with a seed"
        yield f"{title}:\n\n{markdown(['work', *models], rows)}"


def _speed(cell: CellFigures | None) -> str:
    figures = cell and cell.methods.get(DEFAULT)
    return marked(cell, shown(figures.speed)) if cell and figures else ""


def shown(speed: Ratio) -> str:
    """A ratio, in bold where it is above 1; where its interval includes 1, only the interval."""
    low, high = round(speed.low or 0.0, 2), round(speed.high or 0.0, 2)
    if low <= 1 <= high:
        return f"{low:.2f} to {high:.2f}"
    return f"**{speed}**" if low > 1 else str(speed)


def methods(found: Results) -> Iterator[str]:
    """Every method of each model over its greedy suites: geometric means of those that all methods have."""
    for model in models_of(found):
        cells = [cell for cell in found.cells.values() if cell.model == model and cell.temperature == 0]
        if not cells or all(cell.quick for cell in cells):
            continue
        cells = [cell for cell in cells if not cell.quick]
        shared = set.intersection(*({*cell.methods} for cell in cells)) - {ALONE, AGAIN}
        rows = [_method(name, [cell.methods[name] for cell in cells]) for name in sorted(shared)]
        rows.sort(key=lambda row: -row[0])
        suites = ", ".join(suite for suite in _SUITES if suite in {cell.suite for cell in cells})
        yield f"{model} ({suites}):\n\n" + markdown(
            ["method", "speed", "tokens per step", "accepted", "memory"], ([*row[1:]] for row in rows)
        )


def _method(name: str, all_figures: Sequence[Figures]) -> tuple[float, str, str, str, str, str]:
    speed = statistics.geometric_mean(each.speed.mean for each in all_figures)
    steps = statistics.fmean(each.tokens_per_step for each in all_figures)
    accepted = [each.acceptance for each in all_figures if each.acceptance is not None]
    share = f"{statistics.fmean(accepted):.0%}" if accepted else ""
    memory = max(each.memory_mb for each in all_figures)
    return speed, name, f"{speed:.2f}x", f"{steps:.2f}" if steps else "", share, f"{memory:,.0f} MB" if memory else ""


def peers(found: Results) -> Iterator[str]:
    """In each cell the best setting of llama.cpp's tools, and how many times as fast the default is."""
    rows = []
    for cell in found.cells.values():
        if best := best_peer(cell):
            name, figures = best
            name = name.removeprefix("llama-server, ")
            rows.append([cell.model, cell.suite, f"{cell.temperature:g}", name, marked(cell, shown(figures.default))])
    if rows:
        yield markdown(["model", "suite", "temperature", "best setting", "specdec's speed / its"], rows)


def best_peer(cell: CellFigures) -> tuple[str, Figures] | None:
    """The fastest setting of other tools, if there is any in the cell."""
    found = [(name, figures) for name, figures in cell.methods.items() if figures.default]
    return max(found, key=lambda entry: entry[1].speed.mean, default=None)


def exactness(found: Results) -> Iterator[str]:
    """How many answers are the target's own, by tool and temperature."""
    counts: dict[tuple[str, float], list[int]] = {}
    for cell in found.cells.values():
        for name, each in cell.methods.items():
            tool = name.partition(",")[0] if name.startswith("llama") else "specdec"
            own = counts.setdefault((tool, cell.temperature), [0, 0, 0, 0])
            for i, count in enumerate((each.same, each.rounding, each.differs, each.wrong)):
                own[i] += count
    rows = [
        [tool, f"{temperature:g}", *own]
        for (tool, temperature), own in sorted(counts.items(), reverse=True)
        if sum(own) and (temperature == 0 or tool == "specdec")
    ]
    if rows:
        head = ["tool", "temperature", "the target's own", "rounding, proved", "differ, no proof", "wrong"]
        yield markdown(head, rows)


def lost(found: Results) -> Iterator[str]:
    """The cells where the default is slower than it should be."""
    rows = []
    for cell in found.cells.values():
        default = cell.methods.get(DEFAULT)
        if default is None:
            continue
        own = {name: each for name, each in cell.methods.items() if not name.startswith("llama") and name != AGAIN}
        best = max(own.keys() - {ALONE}, key=lambda name: own[name].speed.mean)
        speed, most = default.speed, max(own[best].speed.mean, 1.0)
        if speed.mean < MIN or speed.mean < MIN_OF_BEST * most:
            best_text = ALONE if most == 1.0 else f"{best}, {most:.2f}x"
            rows.append([cell.model, cell.suite, f"{cell.temperature:g}", marked(cell, str(speed)), best_text])
    head = ["model", "suite", "temperature", "default", "best of specdec's methods"]
    yield markdown(head, rows) if rows else "None."


def under_load(found: Results) -> Iterator[str]:
    """Tokens per second of all clients, with the median time to the first token."""
    if not found.load:
        return
    names = [*dict.fromkeys(name for cell in found.load.values() for name in cell.servers)]
    rows = []
    for cell in found.load.values():
        kind = f"{cell.prompts}{', schema' * cell.constrained}{'†' * (cell.tokens < 48)}"
        row: list[object] = [cell.model.partition("-Instruct")[0].partition("-instruct")[0], cell.clients, kind]
        servers = [cell.servers.get(name, (0.0, 0.0, None)) for name in names]
        rows.append([*row, *(f"{speed:,.0f}, {first_ms:,.0f} ms" if speed else "" for speed, first_ms, _ in servers)])
    yield markdown(["model", "clients", "prompts", *names], rows)


def http(found: Results) -> Iterator[str]:
    """The server's HTTP layer, without a model."""
    if found.http:
        yield markdown(["requests", "per second"], ([kind, f"{rate:,.0f}"] for kind, rate in found.http.items()))


def readme_rows(everything: Mapping[str, Results]) -> str:
    """The greedy cells of real models that a reader of the README looks for, with a column for each machine."""
    rows = []
    for model in (model.name for model in MODELS if not model.raw):
        for suite in ("edit", "edits", "code", "chat"):
            cells = [found.cells.get(f"{model} | {suite} | 0") for found in everything.values()]
            row = [_speed(cell) if cell and not cell.quick else "" for cell in cells]
            if any(row):
                rows.append([model, _WORK[suite], *row])
    return markdown(["model", "work", *(found.machine.title for found in everything.values())], rows)


def chart(found: Results) -> str:
    """Bars of the default's greedy speed, by kind of work and model, with a line at 1."""
    models = [model.name for model in MODELS if not model.raw and model.name in models_of(found)]
    groups = [
        (suite, [(name, cell) for name in models if (cell := found.cells.get(f"{name} | {suite} | 0"))])
        for suite in SUITES
    ]
    groups = [(suite, bars) for suite, bars in groups if bars]
    colours = dict(zip(models, ("#0e7a96", "#a06000", "#1a8039", "#8a55e0"), strict=False))
    left, unit, bar, gap = 170, 260, 14, 14
    widest = max([1.0, *(cell.methods[DEFAULT].speed.mean for _, bars in groups for _, cell in bars)])
    width, y, parts = left + unit * widest + 140, 34 + 18 * len(models), []
    for i, name in enumerate(models):
        parts.append(f'<rect x="{left}" y="{10 + 18 * i}" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(f'<text x="{left + 18}" y="{20 + 18 * i}">{name}</text>')
    top = y - 6
    for suite, bars in groups:
        parts.append(
            f'<text x="{left - 10}" y="{y + len(bars) * bar / 2 + 4:.0f}" text-anchor="end">{_WORK[suite]}</text>'
        )
        for name, cell in bars:
            speed = cell.methods[DEFAULT].speed
            parts.append(
                f'<rect x="{left}" y="{y}" width="{unit * speed.mean:.0f}" height="{bar - 2}" fill="{colours[name]}"/>'
            )
            parts.append(f'<text x="{left + unit * speed.mean + 6:.0f}" y="{y + 10}">{shown(speed).strip("*")}</text>')
            y += bar
        y += gap
    line = left + unit
    parts.append(f'<path d="M{line} {top}V{y - gap}" stroke="#57606a" stroke-dasharray="3 3"/>')
    parts.append(f'<text x="{line}" y="{y + 2}" text-anchor="middle" class="small">the target alone</text>')
    style = "text{font:12px sans-serif;fill:#24292f}.small{font-size:11px;fill:#57606a}"
    title = f"Speed of greedy answers over the target alone, {found.machine.title}, {found.machine.cores} cores"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {y + 12}" role="img" aria-label="{title}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def in_hindsight(_: Mapping[str, Results]) -> str:
    """What `auto` reaches of the best possible in the simulator, and where the rest is lost, with the draft model."""
    rows = []
    for title, path in _RECORDED.items():
        recording = acceptance_traces.read(_PROFILES / path)
        for name in _MACHINES:
            found = hindsight.shares(recording.answers, hardware.load(name).costs, recording.greedy)
            parts = (found.best, found.wrong, found.wasted, found.trials, found.short)
            rows.append([title, name, f"{found.speed:.2f}x", *(f"{part:.0%}" for part in parts)])
    head = ["answers", "machine", "speed", "needed", "draft model errs", "wasted", "trials", "too short"]
    return markdown(head, rows)


def _texts(folder: Path) -> dict[str, list[Text]]:
    """The recorded greedy texts by suite."""
    texts: dict[str, list[Text]] = {}
    for path in sorted(folder.glob("*.json.gz")):
        recording, name = acceptance_traces.read(path), path.name.partition(".")[0]
        for text in recording.texts if recording.greedy else ():
            texts.setdefault(name if name in SUITES else text.category, []).append(text)
    return texts


def simulated(everything: Mapping[str, Results]) -> str:
    """The simulator against the cells that were measured on the machines of its curves: greedy, n-grams."""
    rows = []
    for found in everything.values():
        for model, (folder, curve) in _CURVES.get(found.machine.title, {}).items():
            costs = replace(hardware.load(curve).costs, draft=_SEARCH)
            texts = _texts(_PROFILES / "recordings" / folder)
            for suite in SUITES:
                cell = found.cells.get(f"{model} | {suite} | 0")
                if cell and not cell.quick and suite in texts:
                    alone = 1 / (costs.verify(1) + costs.other)
                    speed = hindsight.known(NgramDrafter, texts[suite], costs).tokens_per_s(costs) / alone
                    measured = cell.methods[DEFAULT].speed
                    figures = [str(measured), f"{speed:.2f}x", f"{speed / measured.mean:.2f}"]
                    rows.append([found.machine.title, model, suite, *figures])
    return markdown(["machine", "model", "suite", "measured", "simulated", "ratio"], rows)


BLOCKS: dict[str, Callable[[Results], Iterator[str]]] = {
    "speeds": speeds,
    "methods": methods,
    "peers": peers,
    "exactness": exactness,
    "lost": lost,
    "load": under_load,
    "http": http,
}


WHOLE = {"readme": readme_rows, "hindsight": in_hindsight, "simulated": simulated}
"""Blocks over all machines."""


def block(name: str, everything: Mapping[str, Results]) -> str:
    """A block of the page; with several machines, each has its heading."""
    if name in WHOLE:
        return WHOLE[name](everything)
    parts = []
    for found in everything.values():
        if own := [*BLOCKS[name](found)]:
            heading = [f"**{found.machine.title}**"] if len(everything) > 1 else []
            parts += [*heading, *own]
    return "\n\n".join(parts) or "Not measured yet."


def filled(text: str, everything: Mapping[str, Results]) -> str:
    """A page with its blocks as the results have them."""

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- bench: {match[1]} -->\n\n{block(match[1], everything)}\n\n<!-- end -->"

    return re.sub(r"<!-- bench: (\w+) -->.*?<!-- end -->", replaced, text, flags=re.DOTALL)


def everything() -> dict[str, Results]:
    """The results of all machines, the most measured one first."""
    found = {path.stem: results.load(path) for path in sorted(results.FOLDER.glob("*.json"))}
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1].cells)))


def pages() -> dict[Path, str]:
    """What this writes, by file."""
    found = everything()
    written = {path: filled(path.read_text("utf-8"), found) for path in (PAGE, README)}
    return {**written, CHART: chart(next(iter(found.values())))}


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
