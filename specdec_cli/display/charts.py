"""The charts of a comparison, as SVG to stand inside an HTML page. matplotlib is imported only here, when drawing."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.statistics import Interval
from specdec_cli.display.terminal import safe
from specdec_cli.measure.comparison_result import ComparisonResult
from specdec_cli.measure.summaries import FEW_DRAFTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1c1f24", "#e6e8eb"),
    "soft": ("#5c636e", "#a3abb6"),
    "line": ("#d4d8de", "#3a414b"),
    "band": ("#f4f5f7", "#1e2228"),
    "paper": ("#fefefe", "#15181d"),
    "blue": ("#0072b2", "#4ba3de"),
    "vermillion": ("#d55e00", "#f0803c"),
    "green": ("#00936b", "#2cc295"),
    "purple": ("#c2679a", "#e09cc3"),
    "orange": ("#b87b00", "#f0b429"),
    "sky": ("#3a93c9", "#8accf5"),
    "accepted": ("#006b4e", "#5fd6b0"),
    "correction": ("#8f5400", "#f5bf57"),
    "bonus": ("#00639c", "#7cc4f5"),
    "slower": ("#ad4a00", "#f0803c"),
    "tint": ("#d9f0e7", "#17382f"),
}
"""Name -> (on light, on dark): Okabe and Ito's palette for the colour-blind, shaded to 3:1 against the page, and from
`accepted` on, for text, to 4.5:1. A page defines each as the CSS variable `--name`; the charts refer to those.
"""

_INK, _SOFT, _LINE = (COLOURS[name][0] for name in ("ink", "soft", "line"))
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 12, "hatch.linewidth": 1.2, "text.color": _INK,
    "xtick.color": _SOFT, "ytick.color": _SOFT, "xtick.labelcolor": _INK, "ytick.labelcolor": _INK,
    "axes.labelcolor": _SOFT, "axes.edgecolor": _LINE, "ytick.major.size": 0, "ytick.major.pad": 9,
    "figure.facecolor": "none", "axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip

WIDE, NARROW = 940, 350
_LABEL = {WIDE: 30, NARROW: 18}
"""Characters that a row's label has room for."""
_ARMS = ("blue", "vermillion", "green", "purple", "orange", "sky", "soft")
_MARKERS = "os^DvPX"
_PARTS = {"draft": ("orange", "//"), "verify": ("blue", ""), "sample": ("green", "xx"), "other": ("soft", "||")}
_MAX_CATEGORIES = 24
_FURTHEST = 2.5
"""How far past the means an interval may widen the axis; beyond, it is cut off and ends in an arrow."""


_Look = tuple[str, str]
"""A colour, and a marker or a hatch."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, to be drawn WIDE for a screen or paper and NARROW for a phone.

    height: without the legend. paint: draws on axes for a width. legend: by name.
    """

    title: str
    caption: str
    height: float
    paint: Callable[[Axes, int], None]
    legend: dict[str, _Look]

    def svg(self, width: int) -> str:
        """The chart as a whole <svg> element."""
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        name = f"{self.title.split(maxsplit=1)[0].lower()}-{width}"
        labels = [_short(each, 28) for each in self.legend]
        columns = max(1, (width - 20) // max(60 + 7 * len(label) for label in labels))
        height = self.height + 22 * math.ceil(len(labels) / columns) + 8
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks: the reader's browser has its own
            matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
            matplotlib.rcParams.update({**_STYLE, "svg.hashsalt": name})
            figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
            self.paint(figure.add_subplot(), width)
            keys: Sequence[Any] = [
                Line2D([], [], color=_hex(colour), marker=mark, ms=7, lw=2)
                if mark and mark in _MARKERS
                else Patch(facecolor=_hex(colour), hatch=mark, edgecolor=_hex("paper"), lw=0)
                for colour, mark in self.legend.values()
            ]
            figure.legend(keys, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=12)
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None})
        return _inline(out.getvalue(), name, self.title)


def require() -> None:
    """Raise SpecdecError if there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise SpecdecError("charts need matplotlib", "Install it: pip install matplotlib") from None


def charts(result: ComparisonResult) -> list[Chart]:
    """The charts that a result has data for: speedup by category, acceptance by position, time by part."""
    require()
    return [chart for chart in (_speedup(result), _acceptance(result), _time(result)) if chart]


def _speedup(result: ComparisonResult) -> Chart | None:
    looks = _looks(result)
    measured = (
        (category, {each.arm: each.claimed for each in result.of_category(category) if each.claimed})
        for category in result.categories
    )
    groups = [(category, speedups) for category, speedups in measured if speedups]
    left_out, groups = len(groups[_MAX_CATEGORIES:]), groups[:_MAX_CATEGORIES]
    if not groups:
        return None
    low, high = _window([speedup for _, speedups in groups for speedup in speedups.values()])
    rows = sum(len(speedups) + 0.6 for _, speedups in groups)

    def paint(axes: Axes, width: int) -> None:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(rows, 0)
        _ticks(axes, low, high, 9 if width == WIDE else 5)
        axes.axvline(1.0, color=_hex("ink"), lw=1.4, zorder=1)
        y, labels = 0.0, []
        for number, (category, speedups) in enumerate(groups):
            end = y + len(speedups) + 0.6
            if number % 2 == 0:
                axes.axhspan(y, end, color=_hex("band"), zorder=0)
            labels.append(((y + end) / 2, "all prompts" if category == "all" else _short(category, _LABEL[width])))
            for i, (arm, speedup) in enumerate(speedups.items()):
                _interval(axes, y + 0.8 + i, speedup, looks[arm], low, high)
            y = end
        axes.set_yticks([at for at, _ in labels], [name for _, name in labels])
        axes.set_xlabel("speedup over the target alone, log scale")

    arms = list(dict.fromkeys(arm for _, speedups in groups for arm in speedups))
    caption = "Geometric mean of the paired ratios with its 95 % interval. Filled: the interval excludes 1. Hollow: it holds 1. No bar: fewer than three prompts, so no interval. An arrow: the interval goes on beyond the axis."  # noqa: E501
    if left_out:
        caption += f" {left_out} more categories are in the table."
    return Chart("Speedup by category", caption, 18 * rows + 46, paint, {arm: looks[arm] for arm in arms})


def _interval(axes: Axes, y: float, speedup: Interval, look: _Look, low: float, high: float) -> None:
    """One arm's mean and interval, cut off at the ends of the axis."""
    colour, marker = _hex(look[0]), look[1]
    if speedup.low is not None and speedup.high is not None:
        ends = max(speedup.low, low), min(speedup.high, high)
        axes.plot(ends, (y, y), color=colour, lw=2, solid_capstyle="butt", zorder=2)
        for cut, end, sign in ((speedup.low < low, low, "<"), (speedup.high > high, high, ">")):
            if cut:
                axes.plot([end], [y], marker=sign, color=colour, ms=7, mew=0, clip_on=False, zorder=3)
    fill = _hex("paper") if speedup.difference in ("no difference", "inconclusive") else colour
    axes.plot([speedup.mean], [y], marker=marker, ms=7, mew=1.6, mec=colour, mfc=fill, zorder=4)
    axes.text(1.025, y, f"{speedup.mean:.2f}x", transform=axes.get_yaxis_transform(), va="center", fontsize=11)


def _window(speedups: Sequence[Interval]) -> tuple[float, float]:
    """The range of the speedup axis: 1, every mean, and the intervals as far as they are not absurd."""
    means = [1.0, *(speedup.mean for speedup in speedups)]
    lows = [speedup.low for speedup in speedups if speedup.low is not None]
    highs = [speedup.high for speedup in speedups if speedup.high is not None]
    low = max(min([*means, *lows]), min(means) / _FURTHEST)
    high = min(max([*means, *highs]), max(means) * _FURTHEST)
    room = max((high / low) ** 0.04, 1.02)
    return low / room, high * room


def _ticks(axes: Axes, low: float, high: float, most: int) -> None:
    """Round numbers on a logarithmic axis, 1 among them: multiples of a step, or powers where the range is wide."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    steps = () if high / low > 4 else (0.02, 0.05, 0.1, 0.25, 0.5)
    choices = [[i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps]
    for base in (2.0, 4.0, 16.0, 256.0):
        span = range(math.ceil(math.log(low, base)), math.floor(math.log(high, base)) + 1)
        choices.append([base**i for i in span])
    ticks = next((choice for choice in choices if len(choice) <= most), [1.0])
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:.3g}x" for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


def _acceptance(result: ComparisonResult) -> Chart | None:
    looks = _looks(result)
    drafting = [each for each in result.of_category("all") if each.per_position]
    lines = {each.arm: each.per_position for each in drafting}
    firm_positions = {each.arm: each.firm_positions for each in drafting}
    if not lines:
        return None
    longest = max(len(rates) for rates in lines.values())

    def paint(axes: Axes, width: int) -> None:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        for arm, rates in sorted(lines.items(), key=lambda line: -len(line[1])):  # short ones stay visible on long
            colour, marker = _hex(looks[arm][0]), looks[arm][1]
            firm = firm_positions[arm]  # later positions are reached by fewer drafts
            for first, last, alpha in ((0, firm, 1.0), (max(firm - 1, 0), len(rates), 0.3)):
                places = range(first + 1, last + 1)
                style: dict[str, Any] = {"color": colour, "alpha": alpha, "clip_on": False}
                axes.plot(places, rates[first:last], lw=2, **style)
                axes.plot(places[first > 0 :], rates[first + (first > 0) : last], marker=marker, ms=7, lw=0, **style)
        axes.set_xlim(0.6, longest + 0.4)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(16 if width == WIDE else 8, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", color=_hex("line"), lw=0.8)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("accepted up to here")

    caption = f"Of the drafts that reached a position, the share accepted up to and including it. Faded: fewer than {FEW_DRAFTS} drafts."  # noqa: E501
    return Chart("Acceptance by position", caption, 260, paint, {arm: looks[arm] for arm in lines})


def _time(result: ComparisonResult) -> Chart | None:
    """Each arm's time per token as the tables have it, by part."""
    times = {each.arm: each.tpot_ms for each in result.of_category("all") if each.tpot_ms and each.shares}
    if not times:
        return None
    shares = {each.arm: each.shares for each in result.of_category("all")}
    bars = {arm: [times[arm] * shares[arm].get(part, 0.0) for part in _PARTS] for arm in times}
    longest = max(times.values())

    def paint(axes: Axes, width: int) -> None:
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 10.5, "color": _hex("ink")}
        back = {"facecolor": _hex("paper"), "edgecolor": "none", "boxstyle": "round,pad=0.15"}
        for y, (arm, parts) in enumerate(bars.items()):
            left = 0.0
            for (colour, hatch), part in zip(_PARTS.values(), parts, strict=True):
                axes.barh(y, part, 0.66, left, color=_hex(colour), hatch=hatch, edgecolor=_hex("paper"), lw=0)
                if part / longest > (0.06 if width == WIDE else 0.13):
                    axes.text(left + part / 2, y, f"{part / sum(parts):.0%}", bbox=back, **text)
                left += part
            axes.text(left + longest * 0.01, y, f" {times[arm]:.2f} ms", **{**text, "ha": "left"})
        axes.set_xlim(0, longest * (1.1 if width == WIDE else 1.3))
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.set_yticks(range(len(bars)), [_short(arm, _LABEL[width]) for arm in bars])
        axes.set_xlabel("milliseconds per token")

    caption = "Time per token after the first (TPOT, median over all runs), split as all decoding time was: drafting (with the draft model's reading of the prompt), verifying (the target's own forward passes), sampling, and everything else. A shorter bar is faster."  # noqa: E501
    return Chart("Time per token", caption, 34 * len(bars) + 46, paint, _PARTS)


def _inline(svg: str, prefix: str, title: str) -> str:
    """A file's SVG as one to stand inside a page: no prologue or metadata, ids and colours of the page's own."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->|^.*?(?=<svg)", "", svg, flags=re.DOTALL)
    names = {light: name for name, (light, _) in COLOURS.items()}

    def tag(match: re.Match[str]) -> str:  # tags alone, so that no label's text is taken for markup
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", match.group())
        text = re.sub(r" font-family: [^;\"]*;?", "", text)
        text = re.sub(r"#[0-9a-f]{6}\b", lambda hit: f"var(--{names.get(hit.group(), 'ink')})", text)
        return re.sub(r"\s*\n\s*", " ", text)

    svg = re.sub(r"<[^>]*>", tag, svg)
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{title}">', svg, count=1)
    return re.sub(r">\s*\n\s*<", "><", svg).strip()


def _looks(result: ComparisonResult) -> dict[str, _Look]:
    """Each measured arm's colour and marker: the same in every chart."""
    names = [arm.name for arm in result.arms if arm.name != arm.baseline]
    return {name: (_ARMS[i % len(_ARMS)], _MARKERS[i % len(_MARKERS)]) for i, name in enumerate(names)}


def _hex(name: str) -> str:
    return COLOURS[name][0]


def _short(text: str, length: int) -> str:
    """A label: one line, nothing that a terminal or a browser would obey, not longer than there is room for."""
    text = " ".join(safe(text).split()) or "?"
    return text if len(text) <= length else text[: length - 1] + "\u2026"
