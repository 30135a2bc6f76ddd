"""Pairs on paper: what `check` compared, what `pull` would download, what `ls` and `show` know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from specdec_cli.display.theme import safe

_OUTCOMES = {
    "same": Text("same", style="green"),
    "harmless": Text("harmless", style="yellow"),
    "different": Text("DIFFERENT", style="bold red"),
}
_VERDICTS = {
    "identical": ("identical", "bold green", "the tokenizers are the same in every part"),
    "compatible": ("compatible", "bold green", "what differs cannot change what is decoded"),
    "incompatible": ("incompatible", "bold red", ""),
}
_PLACES = {
    "gpu": "fits the GPU",
    "both": "fits the GPU in part only",
    "main": "fits main memory",
    "none": "does NOT fit this machine",
    "unknown": "this system does not tell how much memory is free",
}

Json = Mapping[str, Any]


def check_tables(result: Json) -> list[RenderableType]:
    """Everything `check` found: the models, the tokenizers, the verdict, memory, and an opinion."""
    parts: list[RenderableType] = [_models(result), Text(), _tokenizers(result["checks"]), Text(), _findings(result)]
    return [*parts, *notes(result["notes"])]


def plan_tables(plan: Json) -> list[RenderableType]:
    """What `pull` would do: the files, the room they take, and what it knows of the pair."""
    table = _grid()
    for role in ("target", "draft"):
        remote: Json = (plan[role] or {}).get("remote") or {}
        for file in remote.get("files", ()):
            about = [f"{remote['repo']}/{file['name']}", size(file["size"]), remote["licence"], _state(file)]
            table.add_row(role, Text(safe(", ".join(part for part in about if part))))
    space = f"{size(plan['to_download'])}; {size(plan['free'])} are free in {plan['cache']}"
    table.add_row("download", Text(safe(space)))
    if plan["check"]:
        _add_findings(table, plan["check"])
    return [table, *notes(plan["notes"])]


def proposals_table(proposals: Sequence[Json]) -> RenderableType:
    """Drafts for a target, the likeliest first."""
    return _Fitted(lambda width: _proposals_table(proposals, narrow=width < 72))


def _proposals_table(proposals: Sequence[Json], narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    columns = [("", "right"), ("draft", "left"), ("size", "right"), ("parameters", "right")]
    for column, justify in columns[:2] if narrow else columns:
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("share", justify="right", no_wrap=not narrow)
    table.add_column("tokenizer", no_wrap=True)
    for number, found in enumerate(proposals, 1):
        share = f"{found['ratio']:.1%}"
        about = () if narrow else (size(found["size"]), _count(found["n_params"]))
        table.add_row(str(number), Text(safe(found["name"])), *about, share, str(found["verdict"]))
    return table


class _Fitted:
    """A table that is made for the width it has."""

    def __init__(self, make: Callable[[int], Table]) -> None:
        self._make = make

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._make(options.max_width)


def list_table(rows: Sequence[Json]) -> RenderableType:
    """All pairs, a line each: whether they are here, how fast they were, what they are."""
    return _Fitted(lambda width: _list_table(rows, narrow=width < 72))


def _list_table(rows: Sequence[Json], narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=not narrow)
    table.add_column("name", no_wrap=True, overflow="ellipsis", max_width=28)
    if not narrow:
        for column in ("for", "size"):
            table.add_column(column, justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("what", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        cells = (
            Text(safe(row["name"]), style="bold" if row["here"] == "yes" else ""),
            f"{row['fits_gb']:g} GB" if row["fits_gb"] else "",
            size(row["size"]) if row["size"] else "",
            Text(row["here"], style="green" if row["here"] == "yes" else "dim"),
            f"{row['speed']['speedup']:.2f}x" if row["speed"] else "",
            Text(safe(row["description"] or " + ".join(name for name in (row["target"], row["draft"]) if name))),
        )
        table.add_row(*((cells[0], *cells[3:5]) if narrow else cells))
    return table


def profile_table(about: Json) -> RenderableType:
    """All that is known of one pair."""
    grid = _grid()
    for name, value in about.items():
        for i, line in enumerate(value if isinstance(value, list) else [value]):
            if line:
                grid.add_row(name if i == 0 else "", Text(safe(str(line))))
    return grid


def notes(found: Sequence[str]) -> list[Text]:
    return [Text(f"note: {safe(note)}", style="yellow") for note in found]


def size(count: int) -> str:
    """Bytes for people, in decimal units as disks and the Hub count them."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:,.1f} {unit}"
    return f"{count} B"


def _models(result: Json) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("", style="dim", no_wrap=True)
    for role in ("target", "draft"):
        table.add_column(role, overflow="fold")
    sides = [result[role] for role in ("target", "draft")]

    def row(name: str, values: Sequence[object]) -> None:
        table.add_row(name, *(Text(safe("unknown" if value is None else str(value))) for value in values))

    row("model", [_named(side) for side in sides])
    row("where", ["on the Hub" if side["remote"] else "on this machine" for side in sides])
    row("architecture", [side["architecture"] for side in sides])
    row("quantisation", [side["quantisation"] for side in sides])
    row("parameters", [_params(side) for side in sides])
    row("layers", [side["n_layers"] for side in sides])
    row("context", [f"{side['n_ctx_train']:,}" if side["n_ctx_train"] else None for side in sides])
    row("file", [size(side["size"]) for side in sides])
    row(f"cache at -c {result['n_ctx']:,}", [_cache(side, result["n_ctx"]) for side in sides])
    return table


def _cache(side: Json, n_ctx: int) -> str:
    """What a cache takes; a model's own limit counts for more than -c."""
    limit = side["n_ctx_train"]
    return size(side["cache"]) + (f" ({limit:,} tokens, its limit)" if limit and limit < n_ctx else "")


def _named(side: Json) -> str:
    """A model as it was named; of a file its own name, without the folders."""
    name = str(side["name"])
    return name if side["remote"] or not name.endswith(".gguf") else name.rpartition("/")[2]


def _tokenizers(checks: Sequence[Json]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("tokenizer", style="dim", no_wrap=True)
    for column in ("target", "draft"):
        table.add_column(column, overflow="fold")
    table.add_column("", no_wrap=True)
    for check in checks:
        values = [Text(safe(str(check[role]))) for role in ("target", "draft")]
        table.add_row(check["what"], *values, _OUTCOMES[check["outcome"]])
    return table


def _grid() -> Table:
    """Labels and text with a hanging indent."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _findings(result: Json) -> RenderableType:
    grid = _grid()
    _add_findings(grid, result)
    return grid


def _add_findings(grid: Table, result: Json) -> None:
    """The verdict, the memory, and what to expect."""
    word, style, meaning = _VERDICTS[result["verdict"]]
    grid.add_row("verdict", Text(word, style=style).append(f": {safe(result['reason'] or meaning)}", style="not bold"))
    accepts = result["llama_cpp_accepts"]
    if (result["verdict"] != "incompatible") != accepts:
        own = "would take this pair: it does not compare that" if accepts else "would refuse this pair over that"
        grid.add_row("", f"llama.cpp itself {own}")
    grid.add_row("memory", _memory(result))
    if result.get("rounding"):
        grid.add_row("rounding", Text(safe(result["rounding"])))
    for i, text in enumerate(result["opinions"]):
        grid.add_row("" if i else "opinion", Text(safe(text)))


def _memory(result: Json) -> Text:
    """What both models need in memory, and whether it is there."""
    memory = result["memory"]
    gpu = f"{size(memory['gpu'])} of GPU memory and " if memory["gpu"] else ""
    main = f"{size(memory['main'])} of main memory" if memory["main"] is not None else "unknown main memory"
    free = "" if memory["fits"] == "unknown" else f" ({gpu}{main} free)"
    needed = f"{size(memory['needed'])} with -c {result['n_ctx']:,}, buffers included"
    return Text(f"{needed}: {_PLACES[memory['fits']]}{free}", style="bold red" if memory["fits"] == "none" else "")


def _params(side: Json) -> str:
    active = side["n_active_params"]
    return _count(side["n_params"]) + (f", {_count(active)} in use" if active != side["n_params"] else "")


def _count(params: int) -> str:
    return f"{params / 1e9:,.2f} billion" if params >= 1e9 else f"{params / 1e6:,.1f} million"


def _state(file: Json) -> str:
    if file["here"]:
        return "here already"
    return f"{file['begun'] / file['size']:.0%} here" if file["begun"] else ""
