"""Which licences a package states, and whether the corpus may use its source.

A package must state its licence in its own metadata, and everything that it states there must be permissive. Packages
without a licence, or with one that can't be understood, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message

PERMISSIVE = {
    *("0BSD", "AFL-2.1", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD", "BSL-1.0", "CC0-1.0", "CNRI-Python"),
    *("HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0", "Python-2.0.1", "Unlicense", "Zlib"),
    "ZPL-2.1",
}
"""SPDX identifiers, and BSD for packages that don't say how many clauses."""

_BY_NAME = {name.lower(): name for name in PERMISSIVE}

# As people write them. A statement must match as a whole: "MIT" does, "MIT and GPL" does not.
_WRITTEN = (
    ("MIT", r"(the )?(mit|expat)( licen[cs]e)?( \(mit\))?"),
    (
        "Apache-2.0",
        r"(the )?apache([ -]?2(\.0)?| (software )?licen[cs]e,?( \(?(version |v)?2(\.0)?\)?)?)( licen[cs]e)?",
    ),
    ("BSD-3-Clause", r"(the )?(new |modified |revised )?(bsd[ -]3([ -]clause)?|3[ -]clause bsd)( licen[cs]e)?"),
    ("BSD-2-Clause", r"(the )?(simplified )?(bsd[ -]2([ -]clause)?|2[ -]clause bsd)( licen[cs]e)?"),
    ("BSD", r"(the )?(new |modified |revised )?bsd([ -]like|[ -]style)?( licen[cs]e)?"),
    ("ISC", r"(the )?isc( licen[cs]e)?( \(iscl\))?"),
    ("PSF-2.0", r"(psf|psfl|psf licen[cs]e|(the )?python software foundation licen[cs]e)( v?2)?"),
    ("HPND", r"(hpnd|historical permission notice and disclaimer( \(hpnd\))?)"),
    ("Unlicense", r"(the )?unlicen[cs]e( \(unlicense\))?|public domain"),
    ("Zlib", r"zlib(/libpng)?( licen[cs]e)?"),
)
_WORDS = re.compile(r"[()]|[^\s()]+")
_LONG = 120
"""A License field with more characters than this has a text, which may include bundled packages': it isn't read."""


@dataclass(frozen=True, slots=True)
class Licence:
    """name: what was found, in SPDX form if known. why: the reason if it isn't permissive."""

    name: str
    permissive: bool
    why: str = ""


def decide(metadata: Message) -> Licence:
    """The licence of a distribution from its core metadata: License-Expression if there is one, otherwise every name
    in License and the classifiers.
    """
    expression = metadata.get("License-Expression", "").strip()
    if expression:
        allowed = allows(expression)
        return Licence(expression, allowed, "" if allowed else "not permissive, or unknown here")
    stated = metadata.get("License", "").strip()
    classifiers = [text for text in metadata.get_all("Classifier", []) if text.startswith("License ::")]
    names = [] if len(stated) > _LONG or stated.upper() == "UNKNOWN" else [stated]
    names += [text.rsplit("::", 1)[-1].strip() for text in classifiers]
    names = [name for name in names if name not in ("", "OSI Approved")]
    if not names:
        return Licence("", False, "none stated")
    return _all_of(names)


def _all_of(names: Sequence[str]) -> Licence:
    found: list[str] = []
    for name in names:
        known = _known(name)
        if known is None:
            return Licence(name, False, "not permissive, or unknown here")
        if known not in found:
            found.append(known)
    if "BSD" in found and any(name.startswith("BSD-") for name in found):
        found.remove("BSD")
    return Licence(", ".join(found), True)


def _known(name: str) -> str | None:
    """The SPDX form of a licence's name, None if it isn't permissive. An SPDX expression is returned as is."""
    name = " ".join(name.strip(" .\"'").split())
    if name.lower() in _BY_NAME:
        return _BY_NAME[name.lower()]
    for spdx, pattern in _WRITTEN:
        if re.fullmatch(pattern, name, re.IGNORECASE):
            return spdx
    return name if allows(name) else None


def allows(expression: str) -> bool:
    """Whether permissive licences alone satisfy an SPDX expression: one side of OR is enough, AND needs both.

    An exception (WITH) only permits more than its licence, so it is ignored. Expressions that don't parse are refused.
    """
    words = _WORDS.findall(expression)
    try:
        allowed, rest = _either(words)
    except IndexError:
        return False
    return allowed and not rest


def _either(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    allowed, rest = _both(words)
    while rest and rest[0].upper() == "OR":
        other, rest = _both(rest[1:])
        allowed = allowed or other
    return allowed, rest


def _both(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    allowed, rest = _one(words)
    while rest and rest[0].upper() == "AND":
        other, rest = _one(rest[1:])
        allowed = allowed and other
    return allowed, rest


def _one(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    if words[0] == "(":
        allowed, rest = _either(words[1:])
        return allowed and rest[0] == ")", rest[1:]
    allowed, rest = words[0].lower() in _BY_NAME, words[1:]
    if rest and rest[0].upper() == "WITH":
        rest[1]  # an exception must be named
        rest = rest[2:]
    return allowed, rest
