"""`specdec draft quantize`: a copy of the target with fewer bits to a weight."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from specdec_cli.gguf import quantisations
from specdec_cli.make_drafts.draft_copy import (
    CopyOptions,
    DraftCopyResult,
    copy_job,
    find_target,
    make_copy,
    require_copyable,
)


def quantize(options: CopyOptions, type_: str) -> DraftCopyResult:
    """Copy a target with fewer bits to a weight. type_: as files are named, such as Q2_K. Raises as `prune` does."""
    quantisation = quantisations.find(type_)
    target, header = find_target(options.target)
    require_copyable(header)
    quantisations.require_smaller(header, quantisation)
    count = header.setting("block_count")
    layers = tuple(range(count)) if type(count) is int else ()
    started = perf_counter()
    with copy_job(options, target, header, quantisations.size_in(header, quantisation)) as job:
        draft = make_copy(job, layers, file_type=quantisation.file_type)
    return replace(draft, seconds=perf_counter() - started)
