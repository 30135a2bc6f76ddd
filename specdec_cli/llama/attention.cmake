# Makes llama.cpp's attention on a CPU quick where texts share a KV cache. building.py has it included where ggml begins.
#
# A mask says which cells each row attends to. llama.cpp tests it cell by cell, for each row and head, and a pass over 64
# tokens or more computes tiles of 64 neighbouring cells where one of them counts. With eight texts in a cache, that takes
# longer than the attention itself. With these changes it skips cells that don't count by 32, and makes up tiles of those
# that do. These are computed as before, in the same order.
# If the source isn't the one that this was written for, it stays as it is.

set(specdec_file "${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/ops.cpp")
file(READ "${specdec_file}" specdec_source)
set(specdec_fits TRUE)

function(specdec_change before after)
    string(FIND "${specdec_source}" "${before}" place)
    if(place EQUAL -1)
        set(specdec_fits FALSE PARENT_SCOPE)
    endif()
    string(REPLACE "${before}" "${after}" changed "${specdec_source}")
    set(specdec_source "${changed}" PARENT_SCOPE)
endfunction()

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

if(specdec_fits)
    file(WRITE "${specdec_file}" "${specdec_source}")
endif()
