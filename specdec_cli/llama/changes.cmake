# What specdec changes in llama.cpp's source before it is compiled. building.py has this included where ggml begins.
# A file that differs from the one that this was written for is left as it is.

function(specdec_change before after)
    string(FIND "${specdec_source}" "${before}" place)
    if(place EQUAL -1)
        set(specdec_fits FALSE PARENT_SCOPE)
    endif()
    string(REPLACE "${before}" "${after}" changed "${specdec_source}")
    set(specdec_source "${changed}" PARENT_SCOPE)
endfunction()

macro(specdec_open file)
    set(specdec_file "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/${file}")
    set(specdec_source "")
    if(EXISTS "${specdec_file}")
        file(READ "${specdec_file}" specdec_source)
    endif()
    set(specdec_fits TRUE)
endmacro()

macro(specdec_close)
    if(specdec_fits)
        file(WRITE "${specdec_file}" "${specdec_source}")
    endif()
endmacro()

# Attention on a CPU where texts share a KV cache. A mask says which cells each row attends to. llama.cpp tests it cell by
# cell, for each row and head, and a pass over 64 tokens or more computes tiles of 64 neighbouring cells where one of them
# counts. With eight texts in a cache, that takes longer than the attention itself. With these changes it skips cells that
# don't count by 32, and makes up tiles of those that do. These are computed as before, in the same order.
specdec_open(ops.cpp)

specdec_change([[
static void ggml_compute_forward_flash_attn_ext_f16_one_chunk(
]] [[
static constexpr ggml_fp16_t HIDDEN = 0xFC00; // minus infinity

// The first cell from ic on that counts for this row of the mask; end if none does.
static int64_t next_visible(const ggml_fp16_t * row, int64_t ic, int64_t end) {
    for (; ic + 32 <= end; ic += 32) {
        ggml_fp16_t seen = 0;
        for (int i = 0; i < 32; ++i) {
            seen |= row[ic + i] ^ HIDDEN;
        }
        if (seen) {
            break;
        }
    }
    while (ic < end && row[ic] == HIDDEN) {
        ++ic;
    }
    return ic;
}

static void ggml_compute_forward_flash_attn_ext_f16_one_chunk(
]])

specdec_change([[
            if (mv == -INFINITY) {
                continue;
            }
]] [[
            if (mv == -INFINITY) {
                ic = next_visible(mp, ic + 1, ic_end) - 1;
                continue;
            }
]])

specdec_change([[
        for (int64_t ic = 0; ic < nek1; ic += KV_TILE_SZ) {
            const int kv_tile = (int)std::min((int64_t)KV_TILE_SZ, nek1 - ic);
]] [[
        std::vector<int64_t> cells; // that count for a row of this tile
        cells.reserve(nek1);
        for (int64_t ic = 0; ic < nek1; ic += KV_TILE_SZ) {
            const int n = (int)std::min((int64_t)KV_TILE_SZ, nek1 - ic);
            ggml_fp16_t seen[KV_TILE_SZ] = {};
            for (int tq = 0; mask && tq < tile_rows; tq++) {
                const ggml_fp16_t * row = (const ggml_fp16_t *)((const char *) mask->data + (iq1 + tq)*mask->nb[1] + (iq2%mask->ne[2])*mask->nb[2] + (iq3%mask->ne[3])*mask->nb[3]) + ic;
                for (int tk = 0; tk < n; tk++) {
                    seen[tk] |= row[tk] ^ HIDDEN;
                }
            }
            for (int tk = 0; tk < n; tk++) {
                if (!mask || seen[tk]) {
                    cells.push_back(ic + tk);
                }
            }
        }
        const int64_t n_cells = cells.size();

        for (int64_t ic = 0; ic < n_cells; ic += KV_TILE_SZ) {
            const int kv_tile = (int)std::min((int64_t)KV_TILE_SZ, n_cells - ic);
]])
specdec_change("GGML_CPU_FP16_TO_FP32(mp_row[ic + tk])" "GGML_CPU_FP16_TO_FP32(mp_row[cells[ic + tk]])")
specdec_change("(const char *)k->data + (ic + tk)*nbk1" "(const char *)k->data + cells[ic + tk]*nbk1")
specdec_change("(const char *)v->data + (ic + tk)*nbv1" "(const char *)v->data + cells[ic + tk]*nbv1")

# A pass over one token divides its cells between the threads if there are at least 512, and so rounds differently from a
# pass over more tokens. With two heads or more for each thread, the threads now divide the heads, as in other passes.
specdec_change("q->type == GGML_TYPE_F32 && nek1 >= 512;" "q->type == GGML_TYPE_F32 && nek1 >= 512 && neq2 < 2 * nth;")
specdec_close()

# Repacked Q4_K and Q6_K matrices, see k_quants.h.
specdec_open(repack.cpp)

specdec_change([[
// Functions to create the interleaved data layout formats
]] [[
#include "k_quants.h"

// Functions to create the interleaved data layout formats
]])

specdec_change([[
        const ggml_from_float_t from_float = ggml_get_type_traits_cpu(PARAM_TYPE)->from_float;
]] [[
        const ggml_from_float_t from_float = specdec::quantizer<BLOC_TYPE, INTER_SIZE>(ggml_get_type_traits_cpu(PARAM_TYPE)->from_float);
]])

specdec_change([[
        // If there are more than three rows in src1, use gemm; otherwise, use gemv.
]] [[
        if constexpr (specdec::multiplies<BLOC_TYPE, INTER_SIZE>) {
            specdec::multiply<BLOC_TYPE>(ne00, (float *) dst_ptr + src0_start, nb1 / nb0, src0_ptr + src0_start * nb01, src1_ptr, nrows, ncols);
            return;
        }

        // If there are more than three rows in src1, use gemm; otherwise, use gemv.
]])

specdec_change([[
            for (int64_t i11 = ith * 4; i11 < ne11 - ne11 % 4; i11 += nth * 4) {
]] [[
            const int64_t i11_processed = specdec::multiplies<BLOC_TYPE, INTER_SIZE> ? 0 : ne11 - ne11 % 4;
            for (int64_t i11 = ith * 4; i11 < i11_processed; i11 += nth * 4) {
]])

specdec_change([[
            const int64_t i11_processed = ne11 - ne11 % 4;
]] "")

foreach(specdec_type q4_K q6_K)
    specdec_change("    ggml_gemv_${specdec_type}_8x8_q8_K(n, s, bs, vx, vy, nr, nc);" "
    if constexpr (specdec::multiplies<block_${specdec_type}, 8>) {
        specdec::multiply<block_${specdec_type}>(n, s, bs, vx, vy, nr, nc);
    } else {
        ggml_gemv_${specdec_type}_8x8_q8_K(n, s, bs, vx, vy, nr, nc);
    }")
endforeach()

specdec_change([[
    } else if (cur->type == GGML_TYPE_Q6_K) {
]] [[
    } else if (cur->type == GGML_TYPE_Q6_K) {
        if (specdec::multiplies<block_q6_K, 8> && cur->ne[1] % 8 == 0) {
            return &q6_K_8x8_q8_K;
        }
]])
specdec_close()

# For library.py, if the kernels are there.
if(specdec_fits)
    file(COPY "${CMAKE_CURRENT_LIST_DIR}/k_quants.h" DESTINATION "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu")
    specdec_open(ggml-cpu.cpp)
    specdec_change([[
        features.push_back({ "REPACK", "1" });
]] [[
        features.push_back({ "REPACK", "1" });
    #if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(_MSC_VER)
        features.push_back({ "K_QUANTS", "1" });
    #endif
]])
    specdec_close()
endif()
