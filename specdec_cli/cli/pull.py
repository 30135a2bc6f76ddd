"""`specdec pull`: compares two models by their headers, then downloads, verifies and records the pair."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.completion import pairs
from specdec_cli.cli.output import print_json, print_parts
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.display.terminal import status_line

if TYPE_CHECKING:
    from specdec_cli.pairs.pair_download import DownloadPlan, DownloadResult, PairDownload


def pull(
    name: Annotated[str | None, typer.Argument(help="A profile; specdec ls lists them.", autocompletion=pairs)] = None,
    target: Annotated[str | None, opt.target(help="Target: REPO:QUANT, REPO/FILE.gguf or a local file.")] = None,
    draft: Annotated[str | None, opt.draft(help="Draft, in the same forms. Without it, pull proposes drafts.")] = None,
    as_: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name for the pair of models that you named.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare and plan, but download nothing.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Verify the checksums of local files, and download damaged ones again.")
    ] = False,
    translate: Annotated[
        bool, typer.Option("--translate", help="Accept a draft with another tokenizer; usually slower.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask; take the first proposed draft.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object; don't ask.")] = False,
) -> None:
    """First, specdec compares their tokenizers, from the file headers.

    If a pull is interrupted, run it again: it continues where it stopped. Each file's checksum is verified; --check
    verifies them again. Weights go to the Hugging Face cache (HF_HOME); HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE apply.
    """
    from specdec_cli.display.pair_tables import plan_tables
    from specdec_cli.pairs.pair_download import PairDownload

    asks = not (yes or json_ or dry_run) and sys.stdin.isatty() and sys.stderr.isatty()
    download = PairDownload(name, target, draft, as_, check)
    reading = "computing checksums" if check else "reading headers"
    with status_line(reading, json_):
        result = None if dry_run else download.existing()
    if result is None:
        with status_line("reading headers", json_):
            download.read_target()
        if download.needs_draft and not _choose(download, asks, yes, json_):
            return
        with status_line(reading, json_):
            plan = download.plan()
        if dry_run and json_:
            print_json(plan)
            return
        if not json_:
            print_parts(plan_tables(plan), stderr=True)
        if dry_run:
            print("Nothing was downloaded, because of --dry-run.", flush=True)
            return
        differ = plan.translates and not translate
        if differ and not asks:
            plan.require_same_tokenizers("accept this one with --translate")
        if differ:
            print_parts("These tokenizers differ. specdec can translate, which is usually slower.", stderr=True)
        question = "Download?" if plan.to_download else "Use this pair?"
        if asks and (plan.to_download or differ) and not typer.confirm(question, default=not differ, err=True):
            print("Nothing was downloaded.", file=sys.stderr)
            raise typer.Exit(1)
        result = _fetch(download, plan, json_)
    _report(result, check, json_)


def _report(result: DownloadResult, checked: bool, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    pair, here = result.name or "the pair", "already here and undamaged" if checked else "already here"
    print(f"{pair} was {here}: nothing to download." if result.already else f"{pair} is ready.")
    print(f'Run it:  {result.run} "..."')


def _fetch(download: PairDownload, plan: DownloadPlan, silent: bool) -> DownloadResult:
    from specdec_cli.display.download_view import DownloadDisplay

    try:
        with nullcontext(lambda *_: None) if silent else DownloadDisplay(plan.sizes) as progress:
            return download.run(plan, progress)
    except KeyboardInterrupt:
        raise Interrupted("; the same command continues the download") from None


def _choose(download: PairDownload, asks: bool, yes: bool, as_json: bool) -> bool:
    """Choose a draft. False if that takes a question that can't be asked: then the proposals are printed."""
    from specdec_cli.display.pair_tables import proposals_table
    from specdec_cli.display.tables import note_lines

    with status_line("reading the headers of possible drafts", as_json):
        proposals = download.proposals()
    if as_json and not yes:
        print_json({"proposals": proposals, "notes": download.notes})
        return False
    if not proposals:
        return _choose_alone(download, asks, yes)
    if not as_json:
        print_parts(proposals_table(proposals))
        print_parts(*note_lines(download.notes), stderr=True)
        download.notes.clear()
    number = 1
    if asks:
        while not 1 <= (number := typer.prompt("Which draft?", default=1, type=int, err=True)) <= len(proposals):
            print(f"Give a number from 1 to {len(proposals)}.", file=sys.stderr)
    elif not yes:
        command = shlex.join(["specdec", "pull", "--target", download.target, "--draft", proposals[0].name])
        print(f"\nTo download the first one:  {command}")
        return False
    download.choose(proposals[number - 1].name)
    return True


def _choose_alone(download: PairDownload, asks: bool, yes: bool) -> bool:
    """Take the target without a draft model. False if that takes a question that can't be asked."""
    print_parts(f"No draft model is known for {download.target}. It can run alone, with n-gram drafts.", stderr=True)
    if not (yes or asks):
        print(f"To download it:  {shlex.join(['specdec', 'pull', '--target', download.target, '--yes'])}")
        return False
    download.choose(None)
    return True
