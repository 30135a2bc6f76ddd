"""A comparison as one HTML page that needs no network and no script, for screens light and dark, phones and paper."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

from specdec_cli.decoding.divergence import first_difference
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display import charts
from specdec_cli.display.comparison_tables import COLUMNS, details_of, preamble, summary_cells
from specdec_cli.display.theme import safe
from specdec_cli.evaluation.comparison_result import ComparisonResult
from specdec_cli.evaluation.trials import Trial

_TAGS = {"accepted": "i", "correction": "b", "bonus": "u"}
_LEGEND = {
    "accepted": "drafted, and accepted by the target",
    "correction": "the target's own token where it rejected the draft's",
    "bonus": "the target's own token after a fully accepted draft",
    "plain": "nothing was drafted",
}
_MAX_TEXTS = 350_000
"""Characters of HTML for the answers; prompts beyond are left out, those with divergences last."""
_MAX_PROMPT = 2000
_MAX_TOKENS = 1500
_DETAILS = ("arm", "accepted by position", "time", "same as the target alone")

_COLOURS = {
    **charts.COLOURS,
    "accepted": ("#006b4e", "#5fd6b0"),
    "correction": ("#8f5400", "#f5bf57"),
    "bonus": ("#00639c", "#7cc4f5"),
    "slower": ("#ad4a00", "#f0803c"),
    "tint": ("#d9f0e7", "#17382f"),
}
"""Name -> (on light, on dark); the charts' own and those of tokens, each 4.5:1 against what is behind it."""


def require(path: Path) -> None:
    """Raise what `write` would, now rather than after minutes of measuring."""
    charts.require()
    existed = path.exists()
    try:
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def write(path: Path, result: ComparisonResult) -> None:
    """Write the page; raises SpecdecError if there is no matplotlib, or the disk does not take it."""
    try:
        path.write_text(page(result), "utf-8")
    except OSError as error:
        raise SpecdecError(f"cannot write {path}: {error.strerror}", "Free some space, or name another file.") from None


def page(result: ComparisonResult) -> str:
    models = " + ".join(_text(model.file) for model in result.models.values())
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # The page holds a model's words: even a mistake in the escaping must not run or fetch anything.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>specdec compare: {models}</title>\n<style>\n{_css()}</style>\n</head>\n<body>",
        *_top(result, models),
        *_verdicts(result),
        *_charts(result),
        *_tables(result),
        *_texts(result),
        *_settings(result),
        "</body>\n</html>\n",
    ])  # fmt: skip


def _css() -> str:
    light, dark = (" ".join(f"--{name}: {pair[i]};" for name, pair in _COLOURS.items()) for i in (0, 1))
    css = Path(__file__).with_name("comparison.css").read_text("utf-8")
    return css.replace("LIGHT", light).replace("DARK", dark)


def _text(text: object) -> str:
    """Anything as HTML text: markup escaped, control characters and direction overrides shown, not obeyed."""
    return escape(safe(str(text)).encode("utf-8", "replace").decode())


def _top(result: ComparisonResult, models: str) -> Iterator[str]:
    yield f"<header>\n<h1>Does speculation pay? {models}</h1>"
    yield from (f'<p class="soft">{_text(line)}</p>' for line in preamble(result) if not line.startswith("PARTIAL"))
    yield "</header>"
    if result.partial:
        yield '<p class="banner" role="alert"><strong>PARTIAL:</strong> interrupted before all runs were done.'
        yield "The figures cover what was measured; differences between answers were not classified.</p>"
    if wrong := sum(each.kind == "wrong" for each in result.divergences):
        what = "1 answer is" if wrong == 1 else f"{wrong} answers are"
        yield f'<p class="banner" role="alert"><strong>WRONG:</strong> {what} not the target\'s own.'
        yield "That is a bug in specdec: see the divergences below, and please report it.</p>"


def _verdicts(result: ComparisonResult) -> Iterator[str]:
    yield "<h2>Verdict</h2>"
    if not result.verdicts:
        yield "<p>There was nothing to compare: no arm has a run to set against the target alone.</p>"
        return
    speedups = {summary.arm: summary.speedup for summary in result.of_category("all")}
    yield '<div class="verdicts">'
    for arm, sentences in result.verdicts.items():
        speedup = speedups.get(arm)
        yield f'<div class="verdict {_finding(speedup.difference if speedup else "")}">'
        yield from (f"<strong>{_text(sentence)}</strong>" for sentence in sentences[:1])
        if sentences[1:]:
            yield "<ul>" + "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences[1:]) + "</ul>"
        yield "</div>"
    yield "</div>"


def _finding(difference: str) -> str:
    return difference if difference in ("faster", "slower") else "same"


def _charts(result: ComparisonResult) -> Iterator[str]:
    yield "<h2>Charts</h2>"
    if not (drawn := charts.charts(result)):
        yield "<p>No run gave anything to draw.</p>"
    for chart in drawn:
        yield f'<figure>\n<h3>{chart.title}</h3>\n<div class="wide">{chart.wide}</div>'
        yield f'<div class="narrow">{chart.narrow}</div>\n<figcaption>{_text(chart.caption)}</figcaption>\n</figure>'


def _tables(result: ComparisonResult) -> Iterator[str]:
    if not result.summaries:
        return
    yield "<h2>Figures</h2>\n" + '<div class="wide-table" tabindex="0" role="region" aria-label="Figures">\n<table>'
    sides = ["", *[' class="right"'] * (len(COLUMNS) - 2), ""]
    yield _head([name or "finding" for name in COLUMNS], sides)
    for category in result.categories:
        yield "<tbody>"
        if len(result.categories) > 1:
            title = "all prompts" if category == "all" else category
            yield f'<tr><th colspan="{len(COLUMNS)}" scope="rowgroup">{_text(title)}</th></tr>'
        for summary in result.of_category(category):
            cells = summary_cells(summary)
            yield _row(cells, [*sides[:-1], f' class="{_finding(cells[-1])}"'])
        yield "</tbody>"
    yield "</table>\n</div>"
    if rows := details_of(result):
        yield '<div class="wide-table" tabindex="0" role="region" aria-label="Positions, time and exactness">'
        yield '<table class="wrap">'
        yield _head(_DETAILS, [""] * 4) + "<tbody>" + "".join(_row(cells, [""] * 4) for cells in rows) + "</tbody>"
        yield "</table>\n</div>"
    yield '<p class="soft">Ratios are taken within one prompt and round and summarised by their geometric mean; the'
    yield "interval is a 95 % bootstrap over the prompts. An arm is called faster or slower only if its interval"
    yield "excludes 1. TTFT: time to the first token. TPOT: time per token after it.</p>"


def _head(names: Sequence[str], sides: Sequence[str]) -> str:
    cells = "".join(f'<th{side} scope="col">{_text(name)}</th>' for name, side in zip(names, sides, strict=True))
    return f"<thead><tr>{cells}</tr></thead>"


def _row(cells: Sequence[str], sides: Sequence[str]) -> str:
    rest = "".join(f"<td{side}>{_text(cell)}</td>" for cell, side in zip(cells[1:], sides[1:], strict=True))
    return f'<tr><th scope="row">{_text(cells[0])}</th>{rest}</tr>'


def _texts(result: ComparisonResult) -> Iterator[str]:
    """Each prompt's answers of the first round, folded away; those that diverge first, and open."""
    answers: dict[str, list[Trial]] = {}
    for trial in result.trials:
        if trial.round == 0:
            answers.setdefault(trial.prompt, []).append(trial)
    if not answers:
        return
    diverged, order = {each.prompt for each in result.divergences}, [arm.name for arm in result.arms]
    yield "<h2>Texts</h2>\n" + '<p class="key soft">Every token by where it came from, in the first round:</p>'
    samples = ((origin, _token(origin, origin), meaning) for origin, meaning in _LEGEND.items())
    yield f'<p class="key soft">{" ".join(f"<span>{shown}: {_text(what)}</span>" for _, shown, what in samples)}</p>'
    if diverged:
        yield '<p class="key soft"><span><mark>marked</mark>: where an answer leaves the target\'s own</span></p>'
    size = left_out = 0
    for prompt in sorted(answers, key=lambda name: name not in diverged):
        trials = sorted(answers[prompt], key=lambda trial: order.index(trial.arm))
        block = "\n".join(_prompt(result, prompt, trials, prompt in diverged))
        if size + len(block) > _MAX_TEXTS:
            left_out += 1
            continue
        size += len(block)
        yield block
    if left_out:
        yield f'<p class="soft">The texts of {left_out} more prompts are left out to keep this page small.'
        yield "The object that --json prints has all.</p>"


def _prompt(result: ComparisonResult, prompt: str, trials: Sequence[Trial], is_open: bool) -> Iterator[str]:
    speeds = [f"{each.arm}: {each.tokens_per_s:,.1f} tokens/s" for each in trials if each.tokens_per_s is not None]
    yield f"<details{' open' if is_open else ''}>\n<summary><strong>{_text(prompt)}</strong>"
    yield f"<small>{_text(trials[0].category)}; {_text(', '.join(speeds))}</small></summary>"
    if asked := result.prompts.get(prompt):
        yield f"<pre>\n{_text(asked[:_MAX_PROMPT])}{'…' if len(asked) > _MAX_PROMPT else ''}</pre>"
    yield '<div class="answers">'
    baselines = {arm.name: arm.baseline for arm in result.arms}
    tokens = {trial.arm: trial.tokens for trial in trials}
    for trial in trials:
        mine = (each for each in result.divergences if (each.arm, each.prompt) == (trial.arm, prompt))
        places = {(each.position, each.margin, each.kind) for each in mine}
        here = first_difference(trial.tokens, tokens.get(baselines[trial.arm], trial.tokens))
        yield f"<section>\n<h4>{_text(trial.arm)}</h4>"
        drafted = f", {trial.accepted} of {trial.drafted} drafted accepted" if trial.drafted else ""
        yield f"<small>{len(trial.tokens)} tokens{drafted}; ended: {_text(trial.reason)}</small>"
        for position, margin, kind in sorted(places, key=lambda place: (place[0], place[1] or 0.0, place[2])):
            where = f"token {position}" if position == here else f"token {position} of another round"
            size = "unknown" if margin is None else f"{margin:.3g}"
            yield f"<p><strong>{kind}</strong> from {where}, margin {size}</p>"
        # A newline right after <pre> is dropped by the reader, and many an answer begins with one.
        yield f"<pre>\n{_answer(trial.pieces, here if places else None)}</pre>\n</section>"
    yield "</div>\n</details>"


def _answer(pieces: Sequence[tuple[str, str]], diverges: int | None) -> str:
    parts = [_token(text, origin, i == diverges) for i, (text, origin) in enumerate(pieces[:_MAX_TOKENS])]
    if diverges is not None and diverges == len(pieces):
        parts.append("<mark> ends here</mark>")
    if len(pieces) > _MAX_TOKENS:
        parts.append(f"\u2026 and {len(pieces) - _MAX_TOKENS:,} more tokens")
    return "".join(parts)


def _token(text: str, origin: str, diverges: bool = False) -> str:
    shown = f"<{tag}>{_text(text)}</{tag}>" if (tag := _TAGS.get(origin)) else _text(text)
    return f"<mark>{shown}</mark>" if diverges else shown


_PATHS = dict.fromkeys(("target", "draft", "draft_small", "ngram_corpus"))


def _settings(result: ComparisonResult) -> Iterator[str]:
    """Everything the figures depend on; paths are left out, they may name the user."""
    own = {arm.name: asdict(replace(arm.settings, **_PATHS)) for arm in result.arms}
    first = next(iter(own.values()), {})
    shared = {name: value for name, value in first.items() if all(each.get(name) == value for each in own.values())}
    facts = {
        "platform": result.machine.platform,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "build": result.build,
        "seed": result.seed,
        "models loaded in": f"{result.load_s:.2f} s",
        "every arm": _named(shared),
    }
    for arm, settings in own.items():
        facts[arm] = _named({name: value for name, value in settings.items() if name not in shared})
    yield '<h2>Settings</h2>\n<details>\n<summary>Machine, versions and settings</summary>\n<table class="wrap"><tbody>'
    for name, value in facts.items():
        yield f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
    yield "</tbody></table>\n</details>"


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items() if value is not None)
