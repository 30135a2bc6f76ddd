"""Tables of pairs, for `check`, `pull`, `ls` and `show`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_cli.display.tables import FittingTable, Folding, label_grid, lines_table, note_lines, plain_table
from specdec_cli.pairs.draft_proposals import DraftProposal
from specdec_cli.pairs.pair_check import ModelSummary, PairCheck
from specdec_cli.pairs.pair_download import DownloadPlan
from specdec_cli.pairs.pair_list import PairDetails, PairSummary
from specdec_cli.user_files import format_bytes

_OUTCOMES = {
    "same": Text("same", style="green"),
    "harmless": Text("harmless", style="yellow"),
    "different": Text("DIFFERENT", style="bold red"),
}
_VERDICTS = {
    "identical": ("bold green", "the tokenizers are the same in every part"),
    "compatible": ("bold green", "the differences can't change the decoded text"),
    "reduced": ("bold green", ""),
    "translatable": ("bold yellow", ""),
    "incompatible": ("bold red", ""),
}
_PLACES = {
    "gpu": "fits the GPU",
    "both": "fits the GPU only in part",
    "main": "fits main memory",
    "none": "does NOT fit this machine",
    "unknown": "this system doesn't report free memory",
}


def check_tables(check: PairCheck) -> RenderableType:
    """Everything `check` compared: the models, the tokenizers, the verdict, memory, and advice."""
    models, tokenizers, findings = _two_models(""), _two_models("tokenizer"), label_grid()
    columns = [_model_cells(model, check.n_ctx) for model in (check.target, check.draft)]
    for name in columns[0]:
        models.add_row(name, *(Folding("unknown" if cells[name] is None else str(cells[name])) for cells in columns))
    tokenizers.add_column("", no_wrap=True)
    for part in check.checks:
        what = part.what.removeprefix("tokenizer ").removesuffix(" token")  # short, for narrow screens
        tokenizers.add_row(what, Folding(part.target), Folding(part.draft), _OUTCOMES[part.outcome])
    _add_findings(findings, check)
    return Group(models, Text(), tokenizers, Text(), findings, *note_lines(check.notes or ()))


def _two_models(what: str) -> Table:
    columns = (what, "target", "draft")
    table = plain_table(columns, left=columns, whole=(what,), header="dim")
    table.columns[0].style, table.pad_edge = "dim", False
    return table


def _model_cells(model: ModelSummary, n_ctx: int) -> dict[str, object]:
    """A model by its header. Files are shown without folders, and a model's own limit overrides -c."""
    is_file = not model.remote and model.name.endswith(".gguf")
    limit, active = model.n_ctx_train, model.n_active_params
    return {
        "model": model.name.rpartition("/")[2] if is_file else model.name,
        "where": "on the Hub" if model.remote else "on this machine",
        "architecture": model.architecture,
        "quantisation": model.quantisation,
        "parameters": _count(model.n_params) + (f", {_count(active)} in use" if active != model.n_params else ""),
        "layers": model.n_layers,
        "context": f"{limit:,}" if limit else None,
        "file": format_bytes(model.size),
        "cache": format_bytes(model.cache)
        + (f" with {limit:,} tokens, its limit" if limit and limit < n_ctx else f" with -c {n_ctx:,}"),
    }


def plan_tables(plan: DownloadPlan) -> RenderableType:
    grid = label_grid()
    for role, model in (("target", plan.target), ("draft", plan.draft)):
        if model and model.remote:
            for file in model.files:
                state = "here already" if file.here else f"{file.begun / file.size:.0%} here" if file.begun else ""
                about = (f"{model.remote.repo}/{file.name}", format_bytes(file.size), model.remote.licence, state)
                grid.add_row(role, Folding(", ".join(filter(None, about))))
    room = f"{format_bytes(plan.to_download)}; {format_bytes(plan.free)} are free in {plan.cache}"
    grid.add_row("download", Folding(room))
    if plan.check:
        _add_findings(grid, plan.check)
    return Group(grid, *note_lines(plan.notes))


def proposals_table(proposals: Sequence[DraftProposal]) -> RenderableType:
    """Drafts for a target, the most suitable first."""
    table = FittingTable(("", "draft", "share", "tokenizer", "size", "parameters"), prose=("draft", "tokenizer"), gap=2)
    for number, draft in enumerate(proposals, 1):
        sizes = format_bytes(draft.size), _count(draft.n_params)
        table.add([str(number), draft.name, f"{draft.ratio:.1%}", draft.verdict, *sizes])
    return table


def list_table(pairs: Sequence[PairSummary], notes: Iterable[str] = ()) -> RenderableType:
    if not pairs:
        return Group(*note_lines(notes))
    cells: dict[str, Sequence[Text | str]] = {
        "name": [Text(pair.name, style="bold" if pair.here == "yes" else "") for pair in pairs],
        "here": [Text("" if pair.here == "no" else pair.here, style="green") for pair in pairs],
        "needs": [f"{pair.fits_gb:g} GB" if pair.fits_gb else "" for pair in pairs],
        "size": [format_bytes(pair.size) if pair.size else "" for pair in pairs],
        "speedup": [f"{pair.speed.speedup:.2f}x" if pair.speed and pair.speed.claimed else "" for pair in pairs],
        "models": [pair.description or " + ".join(filter(None, (pair.target, pair.draft))) for pair in pairs],
    }
    filled = {name: column for name, column in cells.items() if any(map(len, column))}
    table = FittingTable(tuple(filled), prose=("here", "models"), gap=2, first=28)
    for row in zip(*filled.values(), strict=True):
        table.add(row)
    return Group(table, *note_lines(notes))


def details_table(details: PairDetails, sources: bool = False) -> RenderableType:
    """Details of a pair. sources: also where its figures come from, and when they were checked."""
    profile, pair = details.profile, details.summary
    name, speed = shlex.quote(profile.name), ""
    if last := pair.speed:
        span = f" ({last.interval.span})" if last.interval.span else ""
        ratio = str(last.interval) if last.claimed else f"not clear{span}"
        speed = f"{ratio}, {last.settings}, {last.when}"
    return lines_table(
        {
            "name": profile.name + (" (your own)" if profile.own else ""),
            "what": profile.description,
            "target": profile.target,
            "draft": profile.draft,
            "why": profile.why,
            "licence": profile.licence + (" (gated: accept it on the Hub first)" if profile.gated else ""),
            "download": f"{profile.download_gb:g} GB" if profile.download_gb else "",
            "memory": f"{profile.memory_gb:g} GB with 4,096 tokens of context" if profile.memory_gb else "",
            "suits": f"{profile.fits_gb:g} GB of memory" if profile.fits_gb else "",
            "sampling": ", ".join(f"{key} {value}" for key, value in profile.settings.items()),
            "heads": details.heads and f"the target has next-token layers: --drafter ngram+{details.heads}",
            "here": pair.here + (f", pulled {pair.pulled}" if pair.pulled else ""),
            "files": [path for path in pair.paths if path],
            "speedup": speed,
            "run": f'specdec run -p {name} "..."' if pair.here == "yes" else f"specdec pull {name}",
            "sources": profile.sources if sources else profile.sources and f"specdec show {name} --sources",
            "verified": profile.verified if sources else "",
        }
    )


def _count(params: int) -> str:
    return f"{params / 1e9:,.2f} billion" if params >= 1e9 else f"{params / 1e6:,.1f} million"


def _add_findings(grid: Table, check: PairCheck) -> None:
    style, meaning = _VERDICTS[check.verdict]
    verdict = Text(check.verdict, style=style).append(f": {check.reason or meaning}", style="not bold")
    grid.add_row("verdict", verdict)
    if any(part.outcome == "different" for part in check.checks) == check.llama_cpp_accepts:
        own = "accept this pair: it doesn't compare that" if check.llama_cpp_accepts else "refuse this pair"
        grid.add_row("", f"llama.cpp itself would {own}")
    if check.overlap is not None:
        own = f"{check.overlap:.0%} of the draft's tokens exist in the target too; specdec translates the drafts"
        grid.add_row("overlap", own)
    grid.add_row("memory", _memory(check))
    if check.rounding:
        grid.add_row("rounding", check.rounding)
    for i, text in enumerate(check.advice):
        grid.add_row("" if i else "advice", text)


def _memory(check: PairCheck) -> Text:
    memory = check.memory
    gpu = f"{format_bytes(memory.gpu)} of GPU memory and " if memory.gpu else ""
    main = f"{format_bytes(memory.main)} of main memory" if memory.main is not None else "unknown main memory"
    free = "" if memory.fits == "unknown" else f" ({gpu}{main} free)"
    needed = f"{format_bytes(memory.needed)} with -c {check.n_ctx:,}, buffers included"
    return Text(f"{needed}: {_PLACES[memory.fits]}{free}", style="bold red" if memory.fits == "none" else "")
