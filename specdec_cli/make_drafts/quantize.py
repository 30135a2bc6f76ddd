"""`specdec draft quantize`: copies the target with fewer bits per weight, in the types that llama.cpp can write."""

from __future__ import annotations

from specdec_cli.decoding.errors import UsageError
from specdec_cli.gguf.header import QUANTISATIONS, TYPES, Header
from specdec_cli.make_drafts.draft_copy import CopyOptions, DraftCopyResult, copy_job, require_room
from specdec_cli.user_files import format_bytes, suggest

_MAIN = {"IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S", "IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S"}
"""The tensors' type, if it isn't the name without its last part (llama_ftype_get_default_type)."""
_NEED_MATRIX = (
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS"),
    "IQ3_XS",  # it makes queries and keys IQ3_XXS
    "Q2_K_S",  # only this one's Q2_K needs it
)
"""llama.cpp refuses these without an importance matrix (tensor_requires_imatrix), which specdec doesn't compute."""
_NOT_MADE = ("NVFP4",)  # llama.cpp can read it, but not write it
_EXPERTS_ONLY = "MXFP4"  # other tensors become Q8_0
_MAX_SIZE = 0.99
"""A copy of more than this share of the target's size saves nothing."""
_PRUNE = "Leave layers out instead: specdec draft prune."
_SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def type_names() -> list[str]:
    """All types that specdec can write, smallest first."""
    made = [name for name in QUANTISATIONS.values() if name not in (*_NEED_MATRIX, *_NOT_MADE)]
    return sorted(made, key=bits_of)


def find_type(text: str) -> tuple[str, int]:
    """A type by its name in any case, and llama.cpp's number of it. Raises UsageError if it's unknown or can't be
    written.
    """
    name = _SHORT.get(text.strip().upper(), text.strip().upper())
    if name in _NEED_MATRIX:
        fix = f"Use Q2_K, or download a file of this type. Types: {', '.join(type_names())}."
        raise UsageError(f"{name} needs an importance matrix, which specdec doesn't compute", fix)
    for file_type, known in QUANTISATIONS.items():
        if known == name and name not in _NOT_MADE:
            return name, file_type
    raise UsageError(f"there is no type {text!r}", suggest(name, type_names(), "Types"))


def require_smaller(header: Header, name: str) -> None:
    """Raise UsageError if a copy of this type would be no smaller, and so no faster, or isn't possible."""
    made = [each for each in type_names() if each != _EXPERTS_ONLY or header.count("expert_count") > 1]
    if name not in made:
        what = f"llama.cpp writes {name} only for experts, and the target has none"
        raise UsageError(what, f"Types: {', '.join(made)}.")
    now = 8 * sum(tensor.size or 0 for tensor in header.tensors) / max(1, header.n_params)
    if bits_of(name) >= now or name == header.quantisation:
        fewer = [each for each in made if bits_of(each) < now and each != header.quantisation]
        fix = f"Give a type with fewer: {', '.join(fewer)}." if fewer else _PRUNE
        bits = f"{name} has {bits_of(name):.3g} bits a weight, and the target has {now:.3g}"
        raise UsageError(f"{bits}, so the copy would be no faster", fix)


def bits_of(name: str) -> float:
    """Per weight, in most tensors."""
    main = _MAIN.get(name, name)
    return _BITS.get(main) or _BITS[main.rpartition("_")[0]]


_BITS = {name: 8 * size / count for name, count, size in TYPES.values()}


def quantize(options: CopyOptions, type_: str) -> DraftCopyResult:
    """Copy a target with fewer bits per weight. type_: a name such as Q2_K. Raises as `prune` does."""
    name, file_type = find_type(type_)
    with copy_job(options) as job:
        require_smaller(job.header, name)
        unfit, size = job.plan(file_type)
        if size > _MAX_SIZE * job.header.size:
            sizes = f"{format_bytes(size)}, and the target has {format_bytes(job.header.size)}"
            raise UsageError(f"a copy in {name} would have {sizes}", _PRUNE)
        require_room(options.out.parent, size)
        options.progress.planned_copy(size, job.header.size, unfit)
        return job.finish(file_type=file_type)
