"""The options that several commands share, each spelt once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_cli.cli import completion

_MODEL = "Models"
_SPEC = "Speculation"
_SAMPLING = "Sampling"
_MACHINE = "Machine"

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-m",
        help="Target model: a .gguf file, REPO:QUANT (pulled), or a profile.",
        autocompletion=completion.models,
        rich_help_panel=_MODEL,
        envvar="SPECDEC_TARGET",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "-md",
        help="Draft model: a .gguf file, REPO:QUANT (pulled), or a profile.",
        autocompletion=completion.models,
        rich_help_panel=_MODEL,
        envvar="SPECDEC_DRAFT",
    ),
]
DraftSmall = Annotated[
    str | None,
    typer.Option(
        "--draft-small",
        "-mds",
        help="A still smaller model that drafts for the draft model: --drafter small>model.",
        autocompletion=completion.models,
        rich_help_panel=_MODEL,
        envvar="SPECDEC_DRAFT_SMALL",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        help="A named pair (specdec ls); sets both models. Default: the bundled demo.",
        autocompletion=completion.pairs,
        rich_help_panel=_MODEL,
        envvar="SPECDEC_PROFILE",
    ),
]
DraftTokens = Annotated[
    str | None,
    typer.Option(
        "--draft-tokens",
        "-k",
        metavar="N|auto",
        help="Tokens to draft per step; auto: as many as pay, none included. \\[default: auto]",
        rich_help_panel=_SPEC,
        envvar="SPECDEC_DRAFT_TOKENS",
    ),
]
DraftMinP = Annotated[
    float | None,
    typer.Option(
        help="Stop drafting where the draft's best token has less probability. \\[default: 0]",
        rich_help_panel=_SPEC,
        envvar="SPECDEC_DRAFT_MIN_P",
    ),
]
Tree = Annotated[
    int | None,
    typer.Option(
        "--tree",
        metavar="W",
        help="Draft a tree of up to W branches instead of a chain; -k counts all its tokens. \\[default: 1]",
        rich_help_panel=_SPEC,
        envvar="SPECDEC_TREE",
    ),
]
Lookahead = Annotated[
    str | None,
    typer.Option(
        "--lookahead",
        metavar="W:N:G",
        help="For --drafter lookahead: window, size of n-grams, how many to verify at once. \\[default: 4:3:4]",
        rich_help_panel=_SPEC,
        envvar="SPECDEC_LOOKAHEAD",
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="What drafts: model, ngram or lookahead (need none), self (a copy of the target made by specdec draft), none; ngram+model and model<ngram combine two (specdec drafters). \\[default: model]",
        autocompletion=completion.drafters,
        rich_help_panel=_SPEC,
        envvar="SPECDEC_DRAFTER",
    ),
]
NgramCorpus = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="PATH",
        help="A file or folder, such as your code base, that ngram also drafts from; may be repeated.",
        rich_help_panel=_SPEC,
        envvar="SPECDEC_NGRAM_CORPUS",
    ),
]
Bitwise = Annotated[
    bool | None,
    typer.Option(
        "--bitwise/--no-bitwise",
        help="Draft only within passes that round alike here, so that the text is the target's own to the bit.",
        rich_help_panel=_SPEC,
        envvar="SPECDEC_BITWISE",
    ),
]
Accept = Annotated[
    str | None,
    typer.Option(
        help="How drafts are accepted: rejection (accepts most), or coupled and match (with a seed, the very text of the target alone); typical is LOSSY: faster, another distribution. \\[default: coupled with --seed or --bitwise, else rejection]",
        autocompletion=completion.rules,
        rich_help_panel=_SPEC,
        envvar="SPECDEC_ACCEPT",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", help="Tokens to generate at most. \\[default: 256]", envvar="SPECDEC_MAX_TOKENS"
    ),
]
Temp = Annotated[
    float | None,
    typer.Option(
        "--temp", help="Temperature; 0 is greedy. \\[default: 0]", rich_help_panel=_SAMPLING, envvar="SPECDEC_TEMP"
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        help="Keep the k likeliest tokens; 0 is off. \\[default: 40]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_TOP_K",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        help="Keep the likeliest tokens up to this sum; 1 is off. \\[default: 0.95]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_TOP_P",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        help="Drop tokens below this share of the likeliest; 0 is off. \\[default: 0.05]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_MIN_P",
    ),
]
RepeatPenalty = Annotated[
    float | None,
    typer.Option(
        help="Penalty for recent tokens; 1 is off. \\[default: 1]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_REPEAT_PENALTY",
    ),
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(
        help="Penalty for each recent occurrence. \\[default: 0]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_FREQUENCY_PENALTY",
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option(
        help="Penalty for having occurred recently. \\[default: 0]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_PRESENCE_PENALTY",
    ),
]
RepeatLastN = Annotated[
    int | None,
    typer.Option(
        help="How many tokens back the penalties look. \\[default: 64]",
        rich_help_panel=_SAMPLING,
        envvar="SPECDEC_REPEAT_LAST_N",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", "-s", help="Seed for sampling. \\[default: random]", rich_help_panel=_SAMPLING, envvar="SPECDEC_SEED"
    ),
]
Ctx = Annotated[
    int | None,
    typer.Option(
        "--ctx",
        "-c",
        help="Context in tokens. \\[default: what prompt and -n need]",
        rich_help_panel=_MACHINE,
        envvar="SPECDEC_CTX",
    ),
]
ThreadsDraft = Annotated[
    int | None,
    typer.Option(
        "--threads-draft",
        "-td",
        help="CPU threads of the draft model. \\[default: as --threads]",
        rich_help_panel=_MACHINE,
        envvar="SPECDEC_THREADS_DRAFT",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        help="CPU threads. \\[default: the physical cores]",
        rich_help_panel=_MACHINE,
        envvar="SPECDEC_THREADS",
    ),
]
GpuLayers = Annotated[
    int | None,
    typer.Option(
        "--gpu-layers",
        "-ngl",
        help="Target layers on the GPU; -1 is all. \\[default: -1]",
        rich_help_panel=_MACHINE,
        envvar="SPECDEC_GPU_LAYERS",
    ),
]
GpuLayersDraft = Annotated[
    int | None,
    typer.Option(
        "--gpu-layers-draft",
        "-ngld",
        help="Draft layers on the GPU; -1 is all. \\[default: -1]",
        rich_help_panel=_MACHINE,
        envvar="SPECDEC_GPU_LAYERS_DRAFT",
    ),
]
PromptFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")]
System = Annotated[str | None, typer.Option(help="System message, for models with a chat template.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer at this string; may be repeated.")]


def given(context: typer.Context) -> tuple[str | None, dict[str, Any]]:
    """The profile and the settings that a command was given, None where it was not.

    Models named on the command line, one way or the other, count for more than those that SPECDEC_* variables
    name, so what a weaker source says of them is left out.
    """
    from dataclasses import fields

    from specdec_cli.engine.settings import Settings

    names = {field.name for field in fields(Settings)}
    flags = {name: value for name, value in context.params.items() if name in names and value not in ((), [])}
    profile: str | None = context.params["profile"]
    typed = {name for name in ("profile", "target", "draft") if _is_typed(context, name)}
    if "profile" in typed or "target" in typed:
        flags.update({name: None for name in ("target", "draft") if name not in typed})
        profile = profile if "profile" in typed else None
    return profile, flags


def require_used(context: typer.Context, used: Iterable[str]) -> None:
    """Raise UsageError if the command line has an option for another drafter than those that are used.

    `none` takes all of them: it turns a command into its own baseline.
    """
    from specdec_cli import drafters
    from specdec_cli.decoding.errors import UsageError
    from specdec_cli.engine.corpus import reads_corpus

    used = list(used)
    if set(used) == {"none"}:
        return
    for name, heeds, whom, add in (
        ("ngram_corpus", reads_corpus, "the drafter ngram", "ngram, or ngram+model"),
        ("lookahead", lambda drafter: "lookahead" in drafters.split(drafter), "the drafter lookahead", "lookahead"),
        ("draft_small", drafters.needs_small, "drafters with a second draft model", "'small>model'"),
        ("tree", drafters.needs_model, "drafters with a draft model", "model, or ngram+model"),
    ):
        if _is_typed(context, name) and not any(map(heeds, used)):
            raise UsageError(f"--{name.replace('_', '-')} is for {whom}", f"Add --drafter {add}.")


def _is_typed(context: typer.Context, name: str) -> bool:
    where = context.get_parameter_source(name)
    return where is not None and where.name == "COMMANDLINE"
