"""The command line's root: which commands there are, and how their errors end."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_cli import __version__
from specdec_cli.cli.batch import batch
from specdec_cli.cli.chat import chat
from specdec_cli.cli.check import check
from specdec_cli.cli.compare import compare
from specdec_cli.cli.demo import demo
from specdec_cli.cli.doctor import doctor
from specdec_cli.cli.draft import draft
from specdec_cli.cli.drafters import drafters
from specdec_cli.cli.edit import edit
from specdec_cli.cli.error_reporting import ErrorReporting
from specdec_cli.cli.export import export
from specdec_cli.cli.ls import ls
from specdec_cli.cli.pull import pull
from specdec_cli.cli.replay import replay
from specdec_cli.cli.rm import rm
from specdec_cli.cli.rpc_server import rpc_server
from specdec_cli.cli.run import run
from specdec_cli.cli.serve import serve
from specdec_cli.cli.show import show
from specdec_cli.cli.tune import tune

app = typer.Typer(
    name="specdec",
    cls=ErrorReporting,
    help="Speculative decoding for local GGUF models: faster answers, same text.",
    epilog="Start here:  specdec demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"specdec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of specdec itself."""


_MODELS, _MEASUREMENTS = (pull, check, ls, show, rm), (replay, compare, tune, export)
for command in (demo, run, edit, chat, serve, batch, rpc_server, *_MODELS, *_MEASUREMENTS, drafters, doctor):
    app.command()(command)
app.add_typer(draft, name="draft")
