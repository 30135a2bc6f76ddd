"""`--json-schema`, `--grammar` and `--regex`: what an answer is bound to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.decoding.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.constraints.grammar import Grammar

_PANEL = "Constraints"
_MOST_BYTES = 1 << 24

JsonSchema = Annotated[
    str | None,
    typer.Option(
        help="Bind the answer to a JSON schema: a file, or the schema itself.",
        metavar="FILE|TEXT",
        rich_help_panel=_PANEL,
    ),
]
GrammarFile = Annotated[
    Path | None,
    typer.Option("--grammar", help="Bind the answer to a grammar in GBNF or Lark.", rich_help_panel=_PANEL),
]
Regex = Annotated[str | None, typer.Option(help="Bind the answer to a regular expression.", rich_help_panel=_PANEL)]


def asked_grammar(json_schema: str | None, grammar: Path | None, regex: str | None) -> Grammar | None:
    """What the options bind the answer to. Raises UsageError on several at once, and on what cannot be used."""
    from specdec_cli.constraints.grammar import Grammar

    if sum(each is not None for each in (json_schema, grammar, regex)) > 1:
        raise UsageError("an answer can be bound to one thing", "Give one of --json-schema, --grammar and --regex.")
    chosen = None
    if json_schema is not None:
        text = json_schema if json_schema.lstrip()[:1] in ("{", "[") else _read(Path(json_schema), "JSON schema")
        chosen = Grammar.json_schema(text)
    elif grammar is not None:
        chosen = Grammar.rules(_read(grammar, "grammar"))
    elif regex is not None:
        chosen = Grammar.regex(regex)
    if chosen is not None:
        chosen.compiled()
    return chosen


def _read(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"the {what} {path} is larger than {_MOST_BYTES >> 20} MiB", "Give a smaller one.")
        return data.decode()
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}", "Check its path.") from None
    except UnicodeDecodeError:
        raise UsageError(f"the {what} {path} is not UTF-8 text", "Save it as UTF-8.") from None
