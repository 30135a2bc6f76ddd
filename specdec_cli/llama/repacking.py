"""Which weights this build of llama.cpp copies into another order on this machine, for its faster kernels.

It copies at load, while the file stays mapped: such weights are in memory twice. A build that has a GPU copies none.
"""

from __future__ import annotations

from specdec_cli.llama import kernels, library

# Features of the CPU, all of which are needed, and the tensor types that are repacked where they are there.
# From ggml_repack_get_optimal_repack_type in ggml's repack.cpp, and from its amx folder.
_RULES = (
    ({"REPACK", "AVX2"}, {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    ({"REPACK", "AVX512"}, {"Q2_K"}),
    ({"REPACK", "NEON"}, {"IQ4_NL"}),
    ({"REPACK", "NEON", "DOTPROD"}, {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "Q1_0"}),
    ({"REPACK", "NEON", "MATMUL_INT8"}, {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q1_0"}),
    ({"AMX_INT8", "AVX512_VNNI"}, {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}),
)


def repacked_types() -> frozenset[str]:
    """The tensor types of which a CPU run keeps a copy here; none in a build with a GPU, or where that fails."""
    if library.supports_gpu() or not kernels.verdict().extra_buffers:
        return frozenset()
    return types_for(library.build_flags())


def types_for(flags: str) -> frozenset[str]:
    """The same for llama.cpp's line about its build, such as "CPU : AVX2 = 1 | REPACK = 1 | "."""
    parts = [part.rpartition(":")[2].split("=") for part in flags.split("|")]
    features = {part[0].strip() for part in parts if len(part) == 2 and part[1].strip() != "0"}
    return frozenset().union(*(types for needed, types in _RULES if needed <= features))
