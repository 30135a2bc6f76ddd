// Multiplies repacked Q4_K and Q6_K matrices by the few rows of a pass that verifies a draft, on x86.
//
// ggml's own code multiplies up to three rows one at a time, unpacks Q6_K again for each row, and needs 16 rows to reach
// its full speed. This unpacks the weights once for up to eight rows, except those of experts. A row's results don't
// depend on how many rows there are, not even in the last bit. changes.cmake has it included in ggml's repack.cpp.
//
// A repacked block holds 256 weights of each of eight columns (rows of the original matrix), interleaved eight bytes at a
// time. So a register holds bytes of eight columns, or of four with AVX2. Of a sum's 32-bit lanes, 2c and 2c + 1 belong
// to its column c. The two are added at the end.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace specdec {

// Whether `multiply` handles weights of this type, interleaved by this many bytes.
template <class Type, int bytes> constexpr bool multiplies = false;

// n: the length of a row. s: the results; their rows are bs floats apart. vectors: the rows, as block_q8_K.
template <class Type>
void multiply(int64_t n, float * s, size_t bs, const void * weights, const void * vectors, int64_t rows, int64_t columns);

void quantize(const float * x, void * vector, int64_t n);

template <class Type, int bytes> constexpr ggml_from_float_t quantizer(ggml_from_float_t general) {
    if constexpr (multiplies<Type, bytes>) {
        return quantize;
    }
    return general;
}

}

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(_MSC_VER)

#include <immintrin.h>

// Loops over arrays of registers must be unrolled. The loops around them must not be, or the code becomes too long.
#ifdef __clang__
#define SPECDEC_UNROLL _Pragma("unroll")
#define SPECDEC_ROLL _Pragma("nounroll")
#else
#define SPECDEC_UNROLL _Pragma("GCC unroll 8")
#define SPECDEC_ROLL _Pragma("GCC unroll 1")
#endif

namespace specdec {

template <> constexpr bool multiplies<block_q4_K, 8> = true;
template <> constexpr bool multiplies<block_q6_K, 8> = true;

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)

#define SPECDEC_OP(name) _mm512_##name
using Ints = __m512i;
using Floats = __m512;
constexpr int UPPER_SCALE = -1; // none: a lane holds a single sum, see `add_products`

static inline Ints repeat(int64_t bytes) {
    return _mm512_set1_epi64(bytes);
}

static inline Ints repeat(__m128i bytes) {
    return _mm512_broadcast_i32x4(bytes);
}

// A number of each column, in both of its lanes.
static inline Floats in_both_lanes(const ggml_half * numbers) {
    const __m512i order = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) numbers))));
}

static inline void store_even_lanes(float * s, Floats x) {
    _mm256_storeu_ps(s, _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, x)));
}

// Adds products of Q4_K weights and a row. After four such steps, a sum is still below 2^15 in size, so it fits into the
// lower half of its lane.
static inline Ints add_products(Ints sum, Ints weights, Ints row) {
    return _mm512_dpbusd_epi32(sum, weights, row);
}

static inline Ints add_scaled(Ints sum, Ints products, Ints scale) {
    return _mm512_dpwssd_epi32(sum, products, scale);
}

#else

#define SPECDEC_OP(name) _mm256_##name
using Ints = __m256i;
using Floats = __m256;
constexpr int UPPER_SCALE = 0; // the same as in the lower half

static inline Ints repeat(int64_t bytes) {
    return _mm256_set1_epi64x(bytes);
}

static inline Ints repeat(__m128i bytes) {
    return _mm256_broadcastsi128_si256(bytes);
}

static inline Floats in_both_lanes(const ggml_half * numbers) {
    const __m128 x = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *) numbers));
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(x), _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0));
}

static inline void store_even_lanes(float * s, Floats x) {
    _mm_storeu_ps(s, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(x, _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0))));
}

// As with AVX-512, but with one sum in each half of a lane.
static inline Ints add_products(Ints sum, Ints weights, Ints row) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, row));
}

static inline Ints add_scaled(Ints sum, Ints products, Ints scale) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(products, scale));
}

#endif

constexpr int WIDTH = sizeof(Ints);
constexpr int COLUMNS = WIDTH / 8; // in a register
constexpr int64_t MOST_ROWS = 8; // at a time
constexpr int64_t AHEAD = 8; // a block is fetched from memory this many blocks before it is needed
constexpr int64_t CACHED_ROWS = 64; // this many rows stay in the cache while the weights stream past

template <class T> static inline T load(const void * bytes) {
    T value;
    memcpy(&value, bytes, sizeof(value));
    return value;
}

// Which of 16 bytes goes to each byte of a register. Each lane gets two numbers of its column, one in each half. The
// arguments are the places of the first column's numbers, for even and for odd lanes; the other columns' numbers follow.
// -1: zero. at: the byte of each half that gets the number (0: the lower one); the other is zero.
struct Places {
    alignas(64) int8_t of[WIDTH];

    constexpr Places(int even_lower, int even_upper, int odd_lower, int odd_upper, int at = 0) : of() {
        for (int i = 0; i < WIDTH; i++) {
            const int lane = i / 4;
            const int lower = lane % 2 ? odd_lower : even_lower, upper = lane % 2 ? odd_upper : even_upper;
            const int number = i % 2 != at ? -1 : i % 4 < 2 ? lower : upper;
            of[i] = number < 0 ? -1 : number + lane / 2;
        }
    }
};

static inline Ints place(Ints bytes, const Places & places) {
    return SPECDEC_OP(shuffle_epi8)(bytes, load<Ints>(places.of));
}

template <class Type, int rows> struct Product;

template <int rows> struct Product<block_q4_K, rows> {
    using Block = block_q4_Kx8;

    // Adds the products of `rows` rows, `apart` blocks apart, with the columns from `column` on.
    static void add(const Block & w, int column, const block_q8_K * y, int64_t apart, Floats * sums) {
        static constexpr Places FOR_SCALES(0, UPPER_SCALE, 0, UPPER_SCALE), FOR_MINS(0, 0, 8, 8);
        // Each group of 32 weights has a scale and a minimum of six bits each, packed into three words. The first has the
        // scales of columns 0 to 3, the second their minima. For columns 4 to 7, the lower four bits are in the third, and
        // the upper two in the first and the second.
        uint64_t scales[8], mins[8];
        SPECDEC_UNROLL
        for (int i = 0; i < 8; i++) {
            const auto word = [&](int number) -> uint64_t { return load<uint32_t>(w.scales + 12 * i + 4 * number); };
            constexpr uint64_t LOWER = 0x0F0F0F0F3F3F3F3F, UPPER = 0x3030303000000000;
            scales[i] = (((word(2) << 32 | word(0)) & LOWER) | (word(0) << 30 & UPPER)) >> 8 * column;
            mins[i] = (((word(2) >> 4 << 32 | word(1)) & LOWER) | (word(1) << 30 & UPPER)) >> 8 * column;
        }
        const Floats d = in_both_lanes(w.d + column), dmin = in_both_lanes(w.dmin + column);

        Ints min[4], sum[rows];
        SPECDEC_UNROLL
        for (int i = 0; i < 4; i++) { // of two groups each: one in even lanes, one in odd ones
            min[i] = place(repeat(_mm_set_epi64x(mins[2 * i + 1], mins[2 * i])), FOR_MINS);
        }
        SPECDEC_UNROLL
        for (int r = 0; r < rows; r++) {
            Ints all_mins{};
            SPECDEC_UNROLL
            for (int i = 0; i < 4; i++) {
                all_mins = add_scaled(all_mins, min[i], repeat(load<int64_t>(y[r * apart].bsums + 4 * i)));
            }
            const Floats scale = SPECDEC_OP(mul_ps)(dmin, SPECDEC_OP(set1_ps)(y[r * apart].d));
            sums[r] = SPECDEC_OP(fnmadd_ps)(SPECDEC_OP(cvtepi32_ps)(all_mins), scale, sums[r]);
            sum[r] = Ints{};
        }

        const Ints nibble = SPECDEC_OP(set1_epi8)(15);
        SPECDEC_ROLL
        for (int i = 0; i < 4; i++) { // two groups: one in the lower halves of the bytes, one in the upper
            const Ints scale_low = place(repeat(scales[2 * i]), FOR_SCALES), scale_high = place(repeat(scales[2 * i + 1]), FOR_SCALES);
            Ints low[4], high[4];
            SPECDEC_UNROLL
            for (int j = 0; j < 4; j++) {
                const Ints bytes = load<Ints>(w.qs + 256 * i + 64 * j + 8 * column);
                low[j] = bytes & nibble;
                high[j] = SPECDEC_OP(srli_epi16)(bytes, 4) & nibble;
            }
            SPECDEC_UNROLL
            for (int r = 0; r < rows; r++) {
                const int8_t * v = y[r * apart].qs + 64 * i;
                Ints a{}, b{};
                SPECDEC_UNROLL
                for (int j = 0; j < 4; j++) {
                    a = add_products(a, low[j], repeat(load<int64_t>(v + 8 * j)));
                    b = add_products(b, high[j], repeat(load<int64_t>(v + 32 + 8 * j)));
                }
                sum[r] = add_scaled(add_scaled(sum[r], a, scale_low), b, scale_high);
            }
        }
        SPECDEC_UNROLL
        for (int r = 0; r < rows; r++) {
            const Floats scale = SPECDEC_OP(mul_ps)(d, SPECDEC_OP(set1_ps)(y[r * apart].d));
            sums[r] = SPECDEC_OP(fmadd_ps)(SPECDEC_OP(cvtepi32_ps)(sum[r]), scale, sums[r]);
        }
    }
};

template <int rows> struct Product<block_q6_K, rows> {
    using Block = block_q6_Kx8;

    static void add(const Block & w, int column, const block_q8_K * y, int64_t apart, Floats * sums) {
        // Scales are signed. Each goes to the upper byte of a half and is shifted down, which extends its sign.
        static constexpr Places FOR_SCALES(0, 0, 0, 0, 1), FOR_EVEN(0, 8, -1, -1, 1), FOR_ODD(-1, -1, 0, 8, 1);
        const auto scale = [&](int group) {
            return SPECDEC_OP(srai_epi16)(place(repeat(load<int64_t>(w.scales + 8 * group + column)), FOR_SCALES), 8);
        };
        // A weight is stored as a number from 0 to 63 and means 32 less. The sums begin with what these 32 take away.
        // With column 4, the last loads also read four bytes after the scales, which aren't used.
        static_assert(offsetof(Block, ql) == offsetof(Block, scales) + sizeof(w.scales));
        Ints all[4], sum[rows];
        SPECDEC_UNROLL
        for (int i = 0; i < 4; i++) { // scales of four groups of 16 weights, two in each lane
            const int8_t * scales = w.scales + 32 * i + column;
            const Ints even = repeat(load<__m128i>(scales)), odd = repeat(load<__m128i>(scales + 16));
            all[i] = SPECDEC_OP(srai_epi16)(place(even, FOR_EVEN) | place(odd, FOR_ODD), 8);
        }
        SPECDEC_UNROLL
        for (int r = 0; r < rows; r++) {
            sum[r] = Ints{};
            SPECDEC_UNROLL
            for (int i = 0; i < 4; i++) {
                sum[r] = add_scaled(sum[r], all[i], repeat(load<int64_t>(y[r * apart].bsums + 4 * i)));
            }
            sum[r] = SPECDEC_OP(slli_epi32)(SPECDEC_OP(sub_epi32)(Ints{}, sum[r]), 5);
        }

        const Ints nibble = SPECDEC_OP(set1_epi8)(15), upper = SPECDEC_OP(set1_epi8)(0x30);
        SPECDEC_ROLL
        for (int i = 0; i < 8; i++) { // two groups, 64 weights apart: both are in 16 bytes of ql
            const int half = i / 4, part = i % 4; // which half of the block; which 16 of its first 64 weights
            const int first = 128 * half + 16 * part;
            const __m128i left = _mm_cvtsi32_si128(part < 2 ? 4 : 2), right = _mm_cvtsi32_si128(part < 2 ? 0 : 2);
            const Ints scale_low = scale(first / 16), scale_high = scale(first / 16 + 4);
            Ints low[2], high[2];
            SPECDEC_UNROLL
            for (int j = 0; j < 2; j++) {
                const Ints bytes = load<Ints>(w.ql + 128 * i + 64 * j + 8 * column);
                const Ints two_bits = load<Ints>(w.qh + 256 * half + 128 * (part % 2) + 64 * j + 8 * column);
                low[j] = (bytes & nibble) | (SPECDEC_OP(sll_epi16)(two_bits, left) & upper);
                high[j] = (SPECDEC_OP(srli_epi16)(bytes, 4) & nibble) | (SPECDEC_OP(srl_epi16)(two_bits, right) & upper);
            }
            SPECDEC_UNROLL
            for (int r = 0; r < rows; r++) {
                const int8_t * v = y[r * apart].qs + first;
                Ints a{}, b{};
                SPECDEC_UNROLL
                for (int j = 0; j < 2; j++) { // in 16-bit halves: four products stay below 2^15
                    a = SPECDEC_OP(add_epi16)(a, SPECDEC_OP(maddubs_epi16)(low[j], repeat(load<int64_t>(v + 8 * j))));
                    b = SPECDEC_OP(add_epi16)(b, SPECDEC_OP(maddubs_epi16)(high[j], repeat(load<int64_t>(v + 64 + 8 * j))));
                }
                sum[r] = add_scaled(add_scaled(sum[r], a, scale_low), b, scale_high);
            }
        }
        const Floats d = in_both_lanes(w.d + column);
        SPECDEC_UNROLL
        for (int r = 0; r < rows; r++) {
            const Floats scale = SPECDEC_OP(mul_ps)(d, SPECDEC_OP(set1_ps)(y[r * apart].d));
            sums[r] = SPECDEC_OP(fmadd_ps)(SPECDEC_OP(cvtepi32_ps)(sum[r]), scale, sums[r]);
        }
    }
};

// Computes eight columns of `rows` rows.
template <class Type, int rows>
__attribute__((noinline)) static void multiply_tile(int64_t blocks, float * s, size_t bs, const typename Product<Type, 1>::Block * w, const block_q8_K * y) {
    Floats sums[8 / COLUMNS][rows] = {};
    for (int64_t i = 0; i < blocks; i++) {
        for (size_t at = 0; at < sizeof(*w); at += 64) {
            _mm_prefetch((const char *) (w + i + AHEAD) + at, _MM_HINT_T0);
        }
        for (int part = 0; part < 8 / COLUMNS; part++) {
            Product<Type, rows>::add(w[i], part * COLUMNS, y + i, blocks, sums[part]);
        }
    }
    for (int part = 0; part < 8 / COLUMNS; part++) {
        for (int r = 0; r < rows; r++) {
            const Floats sum = sums[part][r];
            store_even_lanes(s + r * bs + part * COLUMNS, SPECDEC_OP(add_ps)(sum, SPECDEC_OP(permute_ps)(sum, 0xB1)));
        }
    }
}

template <class Type, int rows = MOST_ROWS>
static void multiply_some(int64_t blocks, float * s, size_t bs, const typename Product<Type, 1>::Block * w, const block_q8_K * y, int64_t some) {
    if constexpr (rows > 1) {
        if (some < rows) {
            return multiply_some<Type, rows - 1>(blocks, s, bs, w, y, some);
        }
    }
    multiply_tile<Type, rows>(blocks, s, bs, w, y);
}

template <class Type>
void multiply(int64_t n, float * s, size_t bs, const void * weights, const void * vectors, int64_t rows, int64_t columns) {
    const int64_t blocks = n / QK_K;
    const auto * w = (const typename Product<Type, 1>::Block *) weights;
    const auto * y = (const block_q8_K *) vectors;
    for (int64_t first = 0; first < rows; first += CACHED_ROWS) {
        const int64_t end = std::min(first + CACHED_ROWS, rows);
        for (int64_t c = 0; c < columns / 8; c++) {
            for (int64_t r = first; r < end; r += MOST_ROWS) {
                multiply_some<Type>(blocks, s + r * bs + 8 * c, bs, w + c * blocks, y + r * blocks, std::min(MOST_ROWS, end - r));
            }
        }
    }
}

// Like quantize_row_q8_K, in loops that compilers vectorize. A number halfway between two may be rounded to the other.
void quantize(const float * x, void * vector, int64_t n) {
    auto * y = (block_q8_K *) vector;
    for (int64_t i = 0; i < n / QK_K; i++, x += QK_K, y++) {
        int32_t bits[QK_K], most = 0;
        memcpy(bits, x, sizeof(bits));
        for (int j = 0; j < QK_K; j++) {
            most = std::max(most, bits[j] & 0x7FFFFFFF); // without the sign; floats are in the order of their bits
        }
        const float largest = load<float>(&most);
        if (largest == 0) {
            memset(y, 0, sizeof(*y));
            continue;
        }
        int positive = 0;
        for (int j = 0; j < QK_K; j++) {
            positive |= bits[j] == most;
        }
        const float scale = -127.f / (positive ? largest : -largest);
        for (int j = 0; j < QK_K; j++) {
            y->qs[j] = nearest_int(scale * x[j]);
        }
        for (int j = 0; j < QK_K / 16; j++) {
            int sum = 0;
            for (int k = 0; k < 16; k++) {
                sum += y->qs[16 * j + k];
            }
            y->bsums[j] = sum;
        }
        y->d = 1 / scale;
    }
}

}

#undef SPECDEC_OP
#endif
