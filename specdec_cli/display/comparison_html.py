"""A comparison as one HTML page that needs no network and no script, for screens light and dark, phones and paper."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from specdec_cli.decoding.divergence import first_difference
from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display import charts
from specdec_cli.display.comparison_tables import COLUMNS, DETAILS, details_of, preamble, summary_cells
from specdec_cli.display.theme import safe
from specdec_cli.evaluation.comparison_result import ComparisonResult
from specdec_cli.evaluation.trials import Trial

_MAX_TEXTS = 350_000
"""Characters of HTML for the answers; prompts beyond are left out, those with divergences last."""
_MAX_TOKENS = 1500


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
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    answers, left_out = _answers(result, environment.get_template("comparison_answers.html"))
    return environment.get_template("comparison.html").render(
        result=result,
        colours=charts.COLOURS,
        models=" + ".join(model.file for model in result.models.values()),
        preamble=preamble(result),
        wrong=sum(each.kind == "wrong" for each in result.divergences),
        differences={each.arm: each.speedup.difference for each in result.of_category("all") if each.speedup},
        charts=charts.charts(result),
        wide=charts.WIDE,
        narrow=charts.NARROW,
        columns=COLUMNS,
        summary_cells=summary_cells,
        details_columns=DETAILS,
        details=details_of(result),
        answers=answers,
        left_out=left_out,
        facts=_facts(result),
    )


def _shown(value: object) -> object:
    """What a template prints, before it is escaped: control characters and direction overrides shown, not obeyed."""
    return value if isinstance(value, Markup) else safe(str(value)).encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer. leaves_at: the first token that is not its baseline's. divergences: position, margin, kind of each."""

    trial: Trial
    leaves_at: int | None
    divergences: list[tuple[int, float | None, str]]


def _answers(result: ComparisonResult, template: Template) -> tuple[list[str], int]:
    """The HTML of each prompt's answers of the first round, those that diverge first; and how many have no room."""
    prompts: dict[str, dict[str, Trial]] = {}
    for trial in result.trials:
        if trial.round == 0:
            prompts.setdefault(trial.prompt, {})[trial.arm] = trial
    diverged = {each.prompt for each in result.divergences}
    blocks: list[str] = []
    room = _MAX_TEXTS
    for prompt in sorted(prompts, key=lambda name: name not in diverged):
        trials = prompts[prompt]
        arms = [arm for arm in result.arms if arm.name in trials]
        block = template.render(
            prompt=prompt,
            asked=result.prompts.get(prompt),
            is_open=prompt in diverged,
            answers=[_answer(result, trials[arm.name], trials.get(arm.baseline)) for arm in arms],
            most_tokens=_MAX_TOKENS,
        )
        if len(block) <= room:
            room -= len(block)
            blocks.append(block)
    return blocks, len(prompts) - len(blocks)


def _answer(result: ComparisonResult, trial: Trial, baseline: Trial | None) -> _Answer:
    mine = (each for each in result.divergences if (each.arm, each.prompt) == (trial.arm, trial.prompt))
    places = {(each.position, each.margin, each.kind) for each in mine}
    return _Answer(
        trial,
        first_difference(trial.tokens, baseline.tokens) if baseline else None,
        sorted(places, key=lambda place: (place[0], place[1] or 0.0, place[2])),
    )


_PATHS = dict.fromkeys(("target", "draft", "draft_small", "ngram_corpus"))


def _facts(result: ComparisonResult) -> dict[str, object]:
    """Everything the figures depend on; paths are left out, they may name the user."""
    own = {arm.name: asdict(replace(arm.settings, **_PATHS)) for arm in result.arms}
    first = next(iter(own.values()), {})
    shared = {name: value for name, value in first.items() if all(each.get(name) == value for each in own.values())}
    return {
        "platform": result.machine.platform,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "build": result.build,
        "seed": result.seed,
        "models loaded in": f"{result.load_s:.2f} s",
        "every arm": _named(shared),
        **{
            arm: _named({name: value for name, value in settings.items() if name not in shared})
            for arm, settings in own.items()
        },
    }


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items() if value is not None)
