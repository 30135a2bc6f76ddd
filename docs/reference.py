"""Make docs/python-reference.md from the docstrings of what `specdec_cli` exports. tests/test_docs.py holds it current.

python docs/reference.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import specdec_cli

PAGE = Path(__file__).parent / "python-reference.md"
SECTIONS = {
    "Functions": ("load", "load_async", "compare", "tune", "check", "pull"),
    "Engines, sessions, conversations": ("Engine", "AsyncEngine", "Session", "Generation", "Conversation"),
    "Options": ("SamplingParams", "SpeculativeConfig", "Grammar"),
    "Results": ("GenerationResult", "Metrics", "ComparisonResult", "MeasuredTuning", "PairCheck", "DownloadResult"),
    "Events": ("Prefill", "Step", "Token", "TokenLogprobs", "Done"),
    "Your own drafters, rules and lengths": (
        *("Proposer", "Drafter", "DrafterContext", "DraftForm", "Draft", "Categorical", "LengthPolicy", "Verdict"),
    ),
    "Errors": ("SpecdecError", "UsageError", "IncompatiblePair", "DownloadError"),
}
ALIASES = {
    "Event": "`Prefill | Step | Done`",
    "AcceptRule": "A function of a `Draft`, rows of the target's logits, a sampler and a generator, to a `Verdict`.",
}
INNER = {
    "AsyncEngine": {"apart", "idle_session"},
    "Session": {"divergence", "drafts", "events", "keep_costs", "open", "paired_speeds", "settings_of"},
    "GenerationResult": {"add", "take_probed_baseline"},
    "ComparisonResult": {"from_json"},
    "Generation": {"prepare"},
    "Grammar": {"compiled"},
    "DraftForm": {"budget"},
}
"""What only the package's own code has a use for."""
HEAD = """# Python reference

What `specdec_cli` exports, made from its docstrings. [specdec from Python](python-api.md) shows how to use it.
"""
_WIDTH = 100


def page() -> str:
    """The text of the page."""
    missing = set(specdec_cli.__all__) - {name for names in SECTIONS.values() for name in names} - set(ALIASES)
    assert not missing, f"no section has {missing}"
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(specdec_cli, name)) for name in names]
    parts.append("## Other types\n")
    parts += [f"`{name}`: {words}\n" for name, words in ALIASES.items()]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> str:
    lines = [f"### {name}\n"]
    if not inspect.isclass(value):
        lines.append(_code(_signature(name, value)))
    lines.append(_text(value))
    if inspect.isclass(value):
        lines += _fields(value)
        hidden = INNER.get(name, set())
        for each, member in vars(value).items():
            if each.startswith("_") or each in hidden:
                continue
            method = getattr(member, "__func__", member)
            if inspect.isfunction(method) and inspect.getdoc(method):
                lines += [_code(_signature(f"{name}.{each}", method)), _text(method)]
            elif isinstance(member, property):
                about = inspect.getdoc(member)
                lines.append(f"`{name}.{each}`: {_kind(member.fget)}{f'. {_inline(about)}' if about else ''}\n")
    return "\n".join(lines)


def _fields(value: type) -> list[str]:
    if not dataclasses.is_dataclass(value):
        return []
    shown = [field for field in dataclasses.fields(value) if not field.name.startswith("_")]
    return ["Fields: " + ", ".join(f"`{field.name}: {field.type}`" for field in shown) + "\n"] if shown else []


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    if any("_Given" in str(each) for each in signature.parameters.values()):  # another function's parameters
        return f"{name}(...) -> {signature.return_annotation}"
    own = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    text = f"{name}{signature.replace(parameters=own)}"
    text = re.sub(r"'([^'\"]*)'(?=[,)\]= ]|$)", r"\1", text) if "'" in text else text
    if len(text) <= _WIDTH:
        return text
    parts = [str(each).replace("'", "") for each in own]
    for number, each in enumerate(own):
        if each.kind is each.KEYWORD_ONLY:
            parts.insert(number, "*")
            break
    result = text.rpartition(" -> ")
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f") -> {result[2]}"


def _kind(function: Any) -> str:
    return f"`{function.__annotations__.get('return', 'object')}`"


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _text(value: Any) -> str:
    about = inspect.getdoc(value) or ""
    paragraphs = [" ".join(part.split()) for part in textwrap.dedent(about).split("\n\n")]
    return "\n\n".join(_escaped(part) for part in paragraphs) + "\n"


def _inline(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Without what Markdown would take for markup, outside of code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*<\[\]])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
