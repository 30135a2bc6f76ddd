"""Converts GBNF, the form of llama.cpp's grammars, to Lark for llguidance.

llguidance's lexer takes the longest match and never tries a shorter one, and GBNF has no lexer. Each character is
therefore a lexeme of its own. Masks of free text would then take milliseconds, so a repeated class is one lexeme where
that changes nothing: where no parse of the same text can use a character of the class in another place, and nothing
that follows begins with the same byte as a character of the class, because the lexer reads bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_QUOTED = re.compile(r'(?:#|//).*|"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^]\\\n])*\]|/(?:\\.|[^/\\\n])+/')
_ESCAPE = re.compile(r'\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([nrt"\\\[\]-]))')
_READ = re.compile(r"\\U([\da-f]{8})|\\?(.)", re.S)
"""A character that `_parsed` read: by its code point if it was escaped."""
_LAST = 0x10FFFF
_MAX_COPIES = 8
_MAX_STEPS = 50_000
"""How many steps may be spent on finding what can be one lexeme."""


def is_gbnf(text: str) -> bool:
    """Whether a grammar is GBNF, not Lark: it has `::=` outside quotes, classes, expressions and comments."""
    return "::=" in _QUOTED.sub("", text)


def gbnf_to_lark(text: str, llguidance: Any) -> str:
    """llguidance: its module `gbnf_to_lark`, which has a parser."""
    rules = _parsed(text, llguidance)
    if "root" not in rules:
        raise ValueError("it has no rule 'root'")
    return _Lark(rules).text()


def _parsed(text: str, llguidance: Any) -> dict[str, Any]:
    """The rules by name. Escapes are read here: llguidance's parser leaves out their zeros, which makes them others."""
    parser = llguidance.GrammarParser()
    plain = parser._parse_char

    def read(position: Any) -> Any:
        if not (found := _ESCAPE.match(position.text, position.pos)):
            return plain(position)
        code = int(found[1] or found[2] or found[3] or "0", 16)
        if code > _LAST or 0xD800 <= code < 0xE000:
            raise llguidance.GbnfToLarkError(position, f"{found[0]} is no character")
        named = {"n": "\n", "r": "\r", "t": "\t"}.get(found[4], found[4])
        return f"\\U{ord(named) if named else code:08x}", position.advance(len(found[0]))

    parser._parse_char = read
    return {name: rule.alternatives for name, rule in parser.parse(text + "\n").items()}


class _Sequence(NamedTuple):
    nodes: list[_Node]


class _Choice(NamedTuple):
    nodes: list[_Node]


class _Repeat(NamedTuple):
    node: _Node
    least: int
    most: int | None

    def places_alone(self) -> int:
        """The places that are repeated by themselves."""
        of_choice = isinstance(self.node, _Choice) and self.least < 2 and self.most is None
        nodes = self.node.nodes if of_choice and isinstance(self.node, _Choice) else [self.node]
        return sum(1 << node for node in nodes if isinstance(node, int))


_Node = int | str | _Sequence | _Choice | _Repeat
"""A place, which is the number of a class of characters; the name of a rule; or a compound of those."""


class _Lark:
    """Rules that are rewritten in Lark. Sets of places are integers."""

    def __init__(self, rules: dict[str, Any]) -> None:
        self._names = {name: "start" if name == "root" else f"rule_{i}" for i, name in enumerate(rules)}
        self._classes: list[list[tuple[int, int]]] = []
        """The characters of each place, as ranges of code points."""
        self._rules = {name: self._node(rule) for name, rule in rules.items()}
        self._lexemes = self._long_lexemes()

    def text(self) -> str:
        return "".join(f"{self._names[name]}: {self._lark(rule)}\n" for name, rule in self._rules.items())

    def _node(self, parsed: Any) -> _Node:
        match type(parsed).__name__:
            case "RuleRefNode":
                if parsed.name not in self._names:
                    raise ValueError(f"it has no rule '{parsed.name}'")
                return str(parsed.name)
            case "RepetitionNode":
                node, least, most = self._node(parsed.node), parsed.min_times, parsed.max_times
                if isinstance(node, int) and least == most and 1 < least <= _MAX_COPIES:  # known to be that many
                    return _Sequence([node, *(self._place(self._classes[node]) for _ in range(1, least))])
                return _Repeat(node, least, most)
            case "RegexNode":
                return self._place(_ranges(parsed.rx))
            case "LiteralNode":
                nodes: list[_Node] = [self._place([(code, code)]) for code, _ in _characters(parsed.value)]
            case _:
                nodes = [self._node(child) for child in parsed.children()]
        if len(nodes) == 1:
            return nodes[0]
        return _Choice(nodes) if type(parsed).__name__ == "AlternativeNode" else _Sequence(nodes)

    def _place(self, ranges: list[tuple[int, int]]) -> int:
        self._classes.append(ranges)
        return len(self._classes) - 1

    def _lark(self, node: _Node) -> str:
        match node:
            case int():
                return self._lexeme(node, "+" if self._lexemes >> node & 1 else "")
            case str():
                return self._names[node]
            case _Sequence(nodes):
                return " ".join(map(self._lark, nodes)) or '""'
            case _Choice(nodes):
                return "(" + " | ".join(map(self._lark, nodes)) + ")"
            case _Repeat(_, _, 0):
                return '""'
            case _Repeat(int(place), least, most) if self._lexemes >> place & 1:
                lexeme = self._lexeme(place, f"{{{max(least, 1)},{'' if most is None else most}}}")
                return lexeme if least else f"({lexeme})?"
            case _Repeat(repeated, least, most):
                return f"({self._lark(repeated)}){{{least},{'' if most is None else most}}}"

    def _lexeme(self, place: int, repeated: str) -> str:
        ranges = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in self._classes[place])
        return f"/[{ranges}]{repeated}/"

    def _long_lexemes(self) -> int:
        """The repeated places that can be one lexeme; none if it takes too many steps to find out.

        The rules are taken for an automaton without a stack, which allows more: whatever follows a rule anywhere may
        follow it everywhere.
        """
        self._steps, self._alone = 0, 0
        self._after = [0] * len(self._classes)
        """The places that may follow each, other than in a repetition of that place alone."""
        self._ends: dict[str, tuple[bool, int, int]] = dict.fromkeys(self._names, (False, 0, 0))
        before = None
        try:
            while before != self._ends:
                before = dict(self._ends)
                for name, rule in self._rules.items():
                    self._ends[name] = self._ends_of(rule)
            beside = self._places_beside()
        except TimeoutError:
            return 0
        first = [[(_first_byte(low), _first_byte(high)) for low, high in ranges] for ranges in self._classes]
        return sum(
            1 << place
            for place in _members(self._alone)
            if not any(_meet(first[place], first[other]) for other in _members(self._after[place]))
            and not any(self._meet(place, other) for other in _members(beside[place] & ~(1 << place)))
        )

    def _ends_of(self, node: _Node) -> tuple[bool, int, int]:
        """Whether a node matches the empty text, its first and its last places. Notes which places follow in it."""
        self._step()
        match node:
            case int():
                return False, 1 << node, 1 << node
            case str():
                return self._ends[node]
            case _Choice(nodes):
                empty, first, last = False, 0, 0
                for each in nodes:
                    ends = self._ends_of(each)
                    empty, first, last = empty or ends[0], first | ends[1], last | ends[2]
            case _Sequence(nodes):
                empty, first, last = True, 0, 0
                for each in nodes:
                    ends = self._ends_of(each)
                    self._follow(last, ends[1])
                    first |= ends[1] if empty else 0
                    last = ends[2] | (last if ends[0] else 0)
                    empty = empty and ends[0]
            case _Repeat(repeated, least, _):
                empty, first, last = self._ends_of(repeated)
                alone = node.places_alone()
                self._alone |= alone
                self._follow(last & ~alone, first)
                for place in _members(last & alone):
                    self._follow(1 << place, first & ~(1 << place))
                empty = empty or not least
        return empty, first, last

    def _follow(self, places: int, following: int) -> None:
        for place in _members(places):
            self._step()
            self._after[place] |= following

    def _places_beside(self) -> list[int]:
        """For each place, the places where other parses of the same text may be."""
        after = [following | self._alone & 1 << place for place, following in enumerate(self._after)]
        beside = [0] * len(after)
        first = self._ends["root"][1]
        due = [(first, first)]
        while due:
            places, others = due.pop()
            for place in _members(places):
                new = others & ~beside[place]
                beside[place] |= new
                for other in _members(new):
                    self._step()
                    if self._meet(place, other):
                        due.append((after[place], after[other]))
        return beside

    def _meet(self, place: int, other: int) -> bool:
        """Whether two places have a character in common."""
        return _meet(self._classes[place], self._classes[other])

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise TimeoutError


def _meet(ranges: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    return any(mine[0] <= theirs[1] and theirs[0] <= mine[1] for mine in ranges for theirs in others)


def _first_byte(code: int) -> int:
    return chr(code).encode("utf-8", "surrogatepass")[0]


def _members(places: int) -> Iterator[int]:
    while places:
        lowest = places & -places
        yield lowest.bit_length() - 1
        places ^= lowest


def _characters(text: str) -> list[tuple[int, bool]]:
    """The code points of a literal or a class, each with whether it was escaped."""
    return [(int(code, 16), True) if code else (ord(plain), False) for code, plain in _READ.findall(text)]


def _ranges(text: str) -> list[tuple[int, int]]:
    """The characters of a class, without surrogates."""
    if text == ".":
        return [(0, 0xD7FF), (0xE000, _LAST)]
    inside = _characters(text)[1:-1]
    negated = inside[:1] == [(ord("^"), False)]
    inside = inside[negated:]
    ranges, at = [], 0
    while at < len(inside):
        size = 3 if inside[at + 1 : at + 2] == [(ord("-"), False)] and at + 2 < len(inside) else 1
        ranges.append((inside[at][0], inside[at + size - 1][0]))
        at += size
    if negated:
        gaps, low = [], 0
        for start, end in [*sorted(ranges), (_LAST + 1, _LAST + 1)]:
            gaps += [(low, start - 1)]
            low = max(low, end + 1)
        ranges = gaps
    parts = [each for low, high in ranges for each in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high))]
    if not (parts := [(low, high) for low, high in parts if low <= high]):
        raise ValueError(f"no character is in {text}")
    return parts
