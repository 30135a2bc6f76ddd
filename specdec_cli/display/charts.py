"""The charts of a comparison, as SVG to stand inside an HTML page, whose CSS variables are their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from specdec_cli.display.safe_streams import safe
from specdec_cli.evaluation.comparison_result import ComparisonResult
from specdec_cli.evaluation.statistics import FEW_DRAFTS, Interval

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

WIDE, NARROW = 940, 350
_LABEL = {WIDE: 30, NARROW: 18}
"""Characters that a row's label has room for."""
_ARMS = ("blue", "vermillion", "green", "purple", "orange", "sky", "soft")
_MARKERS = "os^DvPX"
_PARTS = {"draft": ("orange", "/"), "verify": ("blue", ""), "sample": ("green", "x"), "other": ("soft", "|")}
_MAX_CATEGORIES = 24
_FURTHEST = 2.5
"""How far past the means an interval may widen the axis; beyond, it is cut off and ends in an arrow."""
_CHARACTER = 7
"""Pixels that a character of a label takes at most, on average."""

_Look = tuple[str, str]
"""A colour, and a marker or a hatch."""

_SHAPES = {
    "s": "M-5 -5H5V5H-5Z",
    "^": "M0 -6L6 5H-6Z",
    "v": "M0 6L6 -5H-6Z",
    "D": "M0 -6L6 0L0 6L-6 0Z",
    "P": "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "X": "M-6 -3L-3 -6L0 -3L3 -6L6 -3L3 0L6 3L3 6L0 3L-3 6L-6 3L-3 0Z",
    "<": "M-6 0L4 -5V5Z",
    ">": "M6 0L-4 -5V5Z",
}
"""Markers as paths around 0, 0; `o` is a circle."""
_HATCHES = {"/": "M-2 2L2 -2M0 8L8 0M6 10L10 6", "x": "M0 0L8 8M8 0L0 8", "|": "M4 0V8"}
"""Hatches as paths in a square of 8."""


class _Drawing:
    """SVG elements in pixels of the view box. name: begins the ids of its patterns, which are the page's."""

    def __init__(self, name: str, width: int) -> None:
        self.name, self.width = name, width
        self._elements: list[str] = []

    def add(self, element: str, inside: str = "", /, **attributes: object) -> None:
        said = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self._elements.append(f"<{element}{said}>{inside}</{element}>" if inside else f"<{element}{said}/>")

    def text(self, x: float, y: float, text: str, colour: str = "ink", size: float = 12, anchor: str = "start") -> None:
        place = {"x": f"{x:.1f}", "y": f"{y + 0.35 * size:.1f}", "text_anchor": anchor}
        self.add("text", escape(text), **place, font_size=size, fill=_var(colour))

    def rect(self, x: float, y: float, width: float, height: float, colour: str, hatch: str = "") -> None:
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{max(width, 0):.1f}", "height": f"{height:.1f}"}
        self.add("rect", **place, fill=_var(colour))
        if hatch:
            self.add("rect", **place, fill=f"url(#{self.name}-{list(_HATCHES).index(hatch)})")

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 2, opacity: float = 1) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        faded = {} if opacity == 1 else {"opacity": opacity}
        self.add("polyline", points=path, fill="none", stroke=_var(colour), stroke_width=width, **faded)

    def marker(self, x: float, y: float, look: _Look, fill: str = "", opacity: float = 1) -> None:
        colour, shape = look
        paint = {"fill": _var(fill or colour), "stroke": _var(colour), "stroke_width": 1.6}
        paint |= {} if opacity == 1 else {"opacity": opacity}
        if shape == "o":
            self.add("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=5, **paint)
        else:
            self.add("path", d=_SHAPES[shape], transform=f"translate({x:.1f} {y:.1f})", **paint)

    def svg(self, height: float, title: str) -> str:
        body = "".join(self._elements)
        patterns = "".join(
            f'<pattern id="{self.name}-{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<path d="{path}" fill="none" stroke="{_var("paper")}" stroke-width="1.2"/></pattern>'
            for number, path in enumerate(_HATCHES.values())
            if f"url(#{self.name}-{number})" in body
        )
        defined = f"<defs>{patterns}</defs>" if patterns else ""
        about = f'viewBox="0 0 {self.width} {height:.0f}" role="img" aria-label="{escape(title)}"'
        return f"<svg {about}>{defined}{body}</svg>"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, to be drawn WIDE for a screen or paper and NARROW for a phone.

    height: without the legend. paint: draws below a line. legend: by name.
    """

    title: str
    caption: str
    height: float
    paint: Callable[[_Drawing, float], None]
    legend: dict[str, _Look]

    def svg(self, width: int) -> str:
        """The chart as a whole <svg> element."""
        drawing = _Drawing(f"{self.title.split(maxsplit=1)[0].lower()}-{width}", width)
        labels = [_short(each, 28) for each in self.legend]
        columns = max(1, (width - 20) // max(60 + _CHARACTER * len(label) for label in labels))
        for number, (label, (colour, mark)) in enumerate(zip(labels, self.legend.values(), strict=True)):
            x, y = 10 + (number % columns) * (width - 20) / columns, 11 + 22 * (number // columns)
            if mark and mark in _MARKERS:
                drawing.line([(x, y), (x + 24, y)], colour)
                drawing.marker(x + 12, y, (colour, mark))
            else:
                drawing.rect(x, y - 5, 24, 10, colour, mark)
            drawing.text(x + 32, y, label)
        top = 22 * math.ceil(len(labels) / columns) + 8
        self.paint(drawing, top)
        return drawing.svg(top + self.height, self.title)


def charts(result: ComparisonResult) -> list[Chart]:
    """The charts that a result has data for: speedup by category, acceptance by position, time by part."""
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

    def paint(drawing: _Drawing, top: float) -> None:
        names = ["all prompts" if name == "all" else _short(name, _LABEL[drawing.width]) for name, _ in groups]
        left, right, bottom = _room(names), drawing.width - 56, top + 18 * rows

        def at(ratio: float) -> float:
            return left + (right - left) * math.log(ratio / low) / math.log(high / low)

        y = top
        for number, (name, (_, speedups)) in enumerate(zip(names, groups, strict=True)):
            height = 18 * (len(speedups) + 0.6)
            if number % 2 == 0:
                drawing.rect(left, y, right - left, height, "band")
            drawing.text(left - 9, y + height / 2, name, anchor="end")
            y += height
        for tick in _ticks(low, high, 9 if drawing.width == WIDE else 5):
            drawing.line([(at(tick), bottom), (at(tick), bottom + 4)], "soft", 1)
            drawing.text(at(tick), bottom + 13, f"{tick:.3g}x", anchor="middle")
        drawing.line([(at(1.0), top), (at(1.0), bottom)], "ink", 1.4)
        drawing.line([(left, top), (left, bottom), (right, bottom)], "line", 1)
        y = top
        for _, speedups in groups:
            for i, (arm, speedup) in enumerate(speedups.items()):
                _interval(drawing, at, y + 18 * (0.8 + i), speedup, looks[arm], (low, high))
                drawing.text(right + 6, y + 18 * (0.8 + i), f"{speedup.mean:.2f}x", size=11)
            y += 18 * (len(speedups) + 0.6)
        drawing.text(
            (left + right) / 2, bottom + 34, "speedup over the target alone, log scale", "soft", anchor="middle"
        )

    arms = list(dict.fromkeys(arm for _, speedups in groups for arm in speedups))
    caption = "Geometric mean of the paired ratios with its 95 % interval. Filled: the interval excludes 1. Hollow: it holds 1. No bar: fewer than three prompts, so no interval. An arrow: the interval goes on beyond the axis."  # noqa: E501
    if left_out:
        caption += f" {left_out} more categories are in the table."
    return Chart("Speedup by category", caption, 18 * rows + 46, paint, {arm: looks[arm] for arm in arms})


def _interval(
    drawing: _Drawing, at: Callable[[float], float], y: float, speedup: Interval, look: _Look, axis: tuple[float, float]
) -> None:
    """One arm's mean and interval, cut off at the ends of the axis."""
    low, high = axis
    if speedup.low is not None and speedup.high is not None:
        drawing.line([(at(max(speedup.low, low)), y), (at(min(speedup.high, high)), y)], look[0])
        if speedup.low < low:
            drawing.marker(at(low), y, (look[0], "<"))
        if speedup.high > high:
            drawing.marker(at(high), y, (look[0], ">"))
    fill = "paper" if speedup.difference in ("no difference", "inconclusive") else ""
    drawing.marker(at(speedup.mean), y, look, fill)


def _window(speedups: Sequence[Interval]) -> tuple[float, float]:
    """The range of the speedup axis: 1, every mean, and the intervals as far as they are not absurd."""
    means = [1.0, *(speedup.mean for speedup in speedups)]
    lows = [speedup.low for speedup in speedups if speedup.low is not None]
    highs = [speedup.high for speedup in speedups if speedup.high is not None]
    low = max(min([*means, *lows]), min(means) / _FURTHEST)
    high = min(max([*means, *highs]), max(means) * _FURTHEST)
    room = max((high / low) ** 0.04, 1.02)
    return low / room, high * room


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers on a logarithmic axis, 1 among them: multiples of a step, or powers where the range is wide."""
    steps = () if high / low > 4 else (0.02, 0.05, 0.1, 0.25, 0.5)
    choices = [[i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps]
    for base in (2.0, 4.0, 16.0, 256.0):
        span = range(math.ceil(math.log(low, base)), math.floor(math.log(high, base)) + 1)
        choices.append([base**i for i in span])
    return next((choice for choice in choices if len(choice) <= most), [1.0])


def _acceptance(result: ComparisonResult) -> Chart | None:
    looks = _looks(result)
    drafting = [each for each in result.of_category("all") if each.per_position]
    if not drafting:
        return None
    longest = max(len(each.per_position) for each in drafting)
    height = 212

    def paint(drawing: _Drawing, top: float) -> None:
        left, right, bottom = 68, drawing.width - 14, top + 8 + height

        def at(position: int, rate: float) -> tuple[float, float]:
            return left + (right - left) * (position - 0.4) / (longest + 0.2), bottom - height * rate

        for percent in range(0, 101, 20):
            y = bottom - height * percent / 100
            drawing.line([(left, y), (right, y)], "line", 0.8)
            drawing.text(left - 9, y, f"{percent}%", anchor="end")
        every = math.ceil(longest / (16 if drawing.width == WIDE else 8))
        for position in range(every, longest + 1, every):
            drawing.text(at(position, 0)[0], bottom + 14, str(position), anchor="middle")
        for each in sorted(drafting, key=lambda each: -len(each.per_position)):  # short ones stay visible on long
            places = [at(position, rate) for position, rate in enumerate(each.per_position, 1)]
            look, firm = looks[each.arm], each.firm_positions  # later positions are reached by fewer drafts
            for first, last, opacity in ((0, firm, 1.0), (max(firm - 1, 0), len(places), 0.3)):
                if last - first > 1:
                    drawing.line(places[first:last], look[0], opacity=opacity)
            for number, (x, y) in enumerate(places):
                drawing.marker(x, y, look, opacity=1.0 if number < firm else 0.3)
        drawing.text((left + right) / 2, bottom + 34, "position in the draft", "soft", anchor="middle")
        middle = top + 8 + height / 2
        turned = {"transform": f"translate(18 {middle:.1f}) rotate(-90)", "text_anchor": "middle", "font_size": 12}
        drawing.add("text", "accepted up to here", **turned, fill=_var("soft"))

    caption = f"Of the drafts that reached a position, the share accepted up to and including it. Faded: fewer than {FEW_DRAFTS} drafts."  # noqa: E501
    legend = {each.arm: looks[each.arm] for each in drafting}
    return Chart("Acceptance by position", caption, height + 50, paint, legend)


def _time(result: ComparisonResult) -> Chart | None:
    """Each arm's time per token as the tables have it, by part."""
    bars = [
        (each.arm, each.tpot_ms, [each.shares.get(part, 0.0) for part in _PARTS])
        for each in result.of_category("all")
        if each.tpot_ms and each.shares
    ]
    if not bars:
        return None
    longest = max(ms for _, ms, _ in bars)

    def paint(drawing: _Drawing, top: float) -> None:
        names = [_short(arm, _LABEL[drawing.width]) for arm, *_ in bars]
        left, right, bottom = _room(names), drawing.width - 14, top + 34 * len(bars)
        scale = (right - left - 70) / longest
        for number, (name, (_, ms, shares)) in enumerate(zip(names, bars, strict=True)):
            x, y = float(left), top + 34 * number
            drawing.text(left - 9, y + 17, name, anchor="end")
            for (colour, hatch), share in zip(_PARTS.values(), shares, strict=True):
                width = share * ms * scale
                drawing.rect(x, y + 6, width, 22, colour, hatch)
                if width > 34:
                    drawing.rect(x + width / 2 - 15, y + 10, 30, 14, "paper")
                    drawing.text(x + width / 2, y + 17, f"{share / sum(shares):.0%}", size=10.5, anchor="middle")
                x += width
            drawing.text(x + 6, y + 17, f" {ms:.2f} ms", size=10.5)
        for tick in _round_steps(longest, 6 if drawing.width == WIDE else 3):
            at = left + tick * scale
            drawing.line([(at, bottom), (at, bottom + 4)], "soft", 1)
            drawing.text(at, bottom + 13, f"{tick:g}", anchor="middle")
        drawing.line([(left, top), (left, bottom), (right, bottom)], "line", 1)
        drawing.text((left + right) / 2, bottom + 34, "milliseconds per token", "soft", anchor="middle")

    caption = "Time per token after the first (TPOT, median over all runs), split as all decoding time was: drafting (with the draft model's reading of the prompt), verifying (the target's own forward passes), sampling, and everything else. A shorter bar is faster."  # noqa: E501
    return Chart("Time per token", caption, 34 * len(bars) + 46, paint, _PARTS)


def _round_steps(longest: float, most: int) -> list[float]:
    """Ticks from 0 on, in steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(longest / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if longest / (power * factor) <= most)
    return [round(number * step, 12) for number in range(math.floor(longest / step) + 1)]


def _room(names: Sequence[str]) -> float:
    """Pixels for the labels of rows."""
    return 14 + _CHARACTER * max(map(len, names))


def _looks(result: ComparisonResult) -> dict[str, _Look]:
    """Each measured arm's colour and marker: the same in every chart."""
    names = [arm.name for arm in result.arms if arm.name != arm.baseline]
    return {name: (_ARMS[i % len(_ARMS)], _MARKERS[i % len(_MARKERS)]) for i, name in enumerate(names)}


def _var(name: str) -> str:
    return f"var(--{name})"


def _short(text: str, length: int) -> str:
    """A label: one line, nothing that a terminal or a browser would obey, not longer than there is room for."""
    text = " ".join(safe(text).split()) or "?"
    return text if len(text) <= length else text[: length - 1] + "\u2026"
