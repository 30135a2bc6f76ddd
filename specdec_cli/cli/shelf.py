"""`specdec ls`, `show` and `rm`: the pairs there are, what is known of one, and taking one off the disk."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_cli.cli import completion

if TYPE_CHECKING:
    from specdec_cli.models.profiles import Profile

_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def ls(
    here: Annotated[bool, typer.Option("--here", help="Only pairs on this machine.")] = False,
    json_: _JSON = False,
) -> None:
    """List the pairs: which are on this machine, how large they are, how fast they were when last measured."""
    from rich.console import Console

    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.display import pair_tables as shown
    from specdec_cli.hub import cache
    from specdec_cli.models import profiles
    from specdec_cli.store import pulled_pairs as pairs

    rows, broken = [], []
    for name in profiles.names():
        try:
            rows.append(_row(profiles.load(name)))
        except SpecdecError as error:  # one broken file of the user's does not hide the others
            broken.append(f"{error}. {error.hint}")
    for name in pairs.names():
        try:
            pairs.load(name)
        except SpecdecError as error:
            broken.append(f"{error}. {error.hint}")
    rows = [row for row in rows if not here or row["here"] == "yes"]
    rows.sort(key=lambda row: (row["here"] != "yes", row["fits_gb"] or 0, row["size"] or 0, row["name"]))
    if json_:
        print(json.dumps({"pairs": rows, "cache": str(cache.cache_dir()), "notes": broken}), flush=True)
        return
    console = Console(highlight=False)
    console.print(shown.list_table(rows))
    for note in shown.notes(broken):
        console.print(note)
    console.print("\nDownload one:  specdec pull NAME     All about one:  specdec show NAME", style="dim")


def show(
    name: Annotated[str, typer.Argument(help="A profile.", autocompletion=completion.pairs)],
    json_: _JSON = False,
) -> None:
    """Tell everything about one pair: why these two, sizes, licence, sampling, where its figures come from."""
    from rich.console import Console

    from specdec_cli.display import pair_tables as shown
    from specdec_cli.engine.config_layers import require_known
    from specdec_cli.models import profiles

    profile = profiles.load(name)
    require_known(profile)
    row = _row(profile)
    if json_:
        about = {**asdict(profile), "folder": str(profile.folder), **row}
        print(json.dumps(about, default=str), flush=True)
        return
    Console(highlight=False).print(shown.profile_table(_about(profile, row)))


def rm(
    name: Annotated[str, typer.Argument(help="A pair that was pulled.", autocompletion=completion.pulled_pairs)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object; needs --yes.")] = False,
) -> None:
    """Remove a pulled pair from the disk, but for files that another pulled pair uses."""
    from specdec_cli.decoding.errors import SpecdecError
    from specdec_cli.display.pair_tables import size
    from specdec_cli.display.theme import safe
    from specdec_cli.models import profiles
    from specdec_cli.models.user_files import suggest
    from specdec_cli.store import pulled_pairs as pairs

    pair = pairs.load(name)
    if pair is None and name in profiles.names() and (left := _abandoned(profiles.load(name))):
        freed = sum(path.stat().st_size for path in left)
        _ask(f"Remove what an interrupted pull of {name} has begun, {size(freed)}?", name, yes, json_)
        for path in left:
            path.unlink(missing_ok=True)
        said = json.dumps({"name": name, "freed": freed, "kept": []})
        print(said if json_ else f"What an interrupted pull of {name} had begun is removed: {size(freed)} freed.")
        return
    if pair is None:
        known = pairs.names()
        hint = suggest(name, known, "Pulled pairs") if known else "specdec pull has brought none yet."
        raise SpecdecError(f"no pair {name!r} has been pulled", hint)
    free, kept = pairs.removable(pair)
    stay = ", ".join(map(safe, kept))
    keeps = f"; {stay} stays, for another pair uses it" if kept else ""
    _ask(f"Remove {name}, {size(free)}{keeps}?", name, yes, json_)
    freed = pairs.remove(pair)
    if json_:
        print(json.dumps({"name": name, "freed": freed, "kept": kept}), flush=True)
        return
    print(f"{name} is removed: {size(freed)} freed." + (f" Kept for another pair: {stay}." if kept else ""))


def _ask(question: str, name: str, yes: bool, as_json: bool) -> None:
    """Go on only if that is wanted."""
    from specdec_cli.decoding.errors import UsageError

    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise UsageError(f"{name} is not removed without being asked for", "Add --yes.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _abandoned(profile: Profile) -> list[Path]:
    """The files that an interrupted pull of a profile has begun."""
    from specdec_cli.hub import cache
    from specdec_cli.models import references

    found = [references.parse(model) for model in (profile.target, profile.draft) if model]
    return [path for reference in found if reference for path in cache.abandoned(reference.repo)]


def _row(profile: Profile) -> dict[str, Any]:
    """What a list says of a pair. size: bytes; of a pair not pulled, as its profile tells it."""
    from specdec_cli.hub import cache
    from specdec_cli.models import references
    from specdec_cli.store import pulled_pairs as pairs
    from specdec_cli.store import speeds

    paths: list[Path | None] = []
    for name in (profile.model("target"), profile.model("draft")):
        if name is not None:
            reference = references.parse(name)
            paths.append(cache.find(reference) if reference else Path(name) if Path(name).is_file() else None)
    found = [path for path in paths if path]
    pulled = pairs.readable(profile.name)
    here = "yes" if len(found) == len(paths) else "in part" if found or _abandoned(profile) else "no"
    total = sum(part.stat().st_size for path in found for part in _parts(path)) if here == "yes" else None
    speed = speeds.last(found[0], found[1]) if len(found) == 2 else None
    return {
        "name": profile.name,
        "target": profile.target,
        "draft": profile.draft,
        "description": profile.description,
        "fits_gb": profile.fits_gb,
        "size": total or (int(profile.download_gb * 1e9) if profile.download_gb else None),
        "here": here,
        "pulled": pulled.pulled if pulled else None,
        "paths": [str(path) if path else None for path in paths],
        "speed": asdict(speed) if speed else None,
    }


def _parts(path: Path) -> list[Path]:
    from specdec_cli.models.gguf import part_names

    return [part for name in part_names(path.name) if (part := path.with_name(name)).is_file()]


def _about(profile: Profile, row: dict[str, Any]) -> dict[str, Any]:
    """A profile, line by line."""
    speed = row["speed"]
    interval = f" ({speed['low']:.2f} to {speed['high']:.2f})" if speed and speed["low"] and speed["high"] else ""
    return {
        "name": profile.name + (" (your own)" if profile.own else ""),
        "what": profile.description,
        "target": profile.target,
        "draft": profile.draft,
        "why": profile.why,
        "licence": profile.licence + (" (gated: to be accepted on the Hub first)" if profile.gated else ""),
        "download": f"{profile.download_gb:g} GB" if profile.download_gb else "",
        "memory": f"{profile.memory_gb:g} GB with 4,096 tokens of context" if profile.memory_gb else "",
        "suits": f"{profile.fits_gb:g} GB of memory" if profile.fits_gb else "",
        "sampling": ", ".join(f"{key} {value}" for key, value in profile.settings.items()),
        "here": row["here"] + (f", pulled {row['pulled']}" if row["pulled"] else ""),
        "files": [path for path in row["paths"] if path],
        "speedup": f"{speed['speedup']:.2f}x{interval}, {speed['settings']}, {speed['when']}" if speed else "",
        "sources": profile.sources,
        "verified": profile.verified,
        "run": f'specdec run -p {profile.name} "..."' if row["here"] == "yes" else f"specdec pull {profile.name}",
    }
