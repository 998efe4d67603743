// The codec for processors with AVX-512 VBMI2 and GFNI (Intel from Ice Lake on, AMD from Zen 4 on).
//
// A block's exponents are four vectors of bytes. Values that reach a deeper level are brought together by compressing
// such vectors and go back by expanding them; planes of bits come from bytes by transposing matrices of bits.

#include "codec.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include "cpu.hpp"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,gfni,bmi,bmi2,popcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,gfni,bmi,bmi2,popcnt")
#pragma GCC target("prefer-vector-width=512")
#endif

namespace zipccl {
namespace {

INLINE uint64_t first_bits(uint64_t bits, unsigned count) { return _bzhi_u64(bits, count); }

#include "layout.hpp"
#include "rows.hpp"
#include "kernels.hpp"
#include "reduce.hpp"
#include "distances.hpp"
#include "body.hpp"
#include "avx512_values.hpp"

// --- The base exponent ---------------------------------------------------------------------------------------------

using Exponents = uint8_t[GROUP_BLOCKS][BLOCK_COUNT];

struct Sum {
    static __m512i of(__m512i a, __m512i b) { return _mm512_add_epi64(a, b); }
};
struct Greatest {
    static __m512i of(__m512i a, __m512i b) { return _mm512_max_epu8(a, b); }
};

// Combine the eight 64-bit elements of each of eight vectors into one element of the result.
template <class Combine>
inline __m512i combine_elements(const __m512i (&vector)[GROUP_BLOCKS]) {
    __m512i by_2[4];
    for (int i = 0; i < 4; ++i) {
        by_2[i] = Combine::of(_mm512_unpacklo_epi64(vector[2 * i], vector[2 * i + 1]),
                              _mm512_unpackhi_epi64(vector[2 * i], vector[2 * i + 1]));
    }
    __m512i by_4[2];
    for (int i = 0; i < 2; ++i) {
        by_4[i] = Combine::of(_mm512_shuffle_i64x2(by_2[2 * i], by_2[2 * i + 1], 0x88),
                              _mm512_shuffle_i64x2(by_2[2 * i], by_2[2 * i + 1], 0xDD));
    }
    return Combine::of(_mm512_shuffle_i64x2(by_4[0], by_4[1], 0x88), _mm512_shuffle_i64x2(by_4[0], by_4[1], 0xDD));
}

// Partial sums over the bytes of two vectors, in the low and high halves of 64-bit elements.
inline __m512i sum_both(__m512i low, __m512i high) {
    const __m512i zero = _mm512_setzero_si512();
    return _mm512_or_si512(_mm512_sad_epu8(low, zero), _mm512_slli_epi64(_mm512_sad_epu8(high, zero), 32));
}

inline __m512i low_half(__m512i elements) { return _mm512_and_si512(elements, _mm512_set1_epi64(0xFFFFFFFF)); }
inline __m512i high_half(__m512i elements) { return _mm512_srli_epi64(elements, 32); }

// The first guess of choose_base in reference.py, for eight blocks.
inline __m512i guess_eight_bases(const Exponents& exponents) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i sums[GROUP_BLOCKS];
    __m512i maxima[GROUP_BLOCKS];
    for (size_t i = 0; i < GROUP_BLOCKS; ++i) {
        __m512i total = zero;
        __m512i normal = zero;
        __m512i greatest = zero;
        for (int c = 0; c < CHUNKS; ++c) {
            const __m512i exponent = load_vector(exponents[i] + CHUNK * c);
            total = _mm512_add_epi64(total, _mm512_sad_epu8(exponent, zero));
            normal = _mm512_add_epi8(normal, _mm512_min_epu8(exponent, _mm512_set1_epi8(1)));
            greatest = _mm512_max_epu8(greatest, exponent);
        }
        sums[i] = _mm512_or_si512(total, _mm512_slli_epi64(_mm512_sad_epu8(normal, zero), 32));
        maxima[i] = greatest;
    }
    const __m512i both = combine_elements<Sum>(sums);
    const __m512i total = low_half(both);
    const __m512i normal = high_half(both);
    __m512i greatest = combine_elements<Greatest>(maxima);
    greatest = _mm512_max_epu8(greatest, _mm512_srli_epi64(greatest, 32));
    greatest = _mm512_max_epu8(greatest, _mm512_srli_epi64(greatest, 16));
    greatest = _mm512_max_epu8(greatest, _mm512_srli_epi64(greatest, 8));
    greatest = _mm512_and_si512(greatest, _mm512_set1_epi64(255));

    const __m512i twice_and_3 = _mm512_add_epi64(_mm512_add_epi64(greatest, greatest), _mm512_set1_epi64(3));
    const __m512i dividend = _mm512_add_epi64(_mm512_add_epi64(total, total), _mm512_mul_epu32(twice_and_3, normal));
    const __m512i divisor = _mm512_max_epu64(_mm512_slli_epi64(normal, 2), _mm512_set1_epi64(1));
    // In binary64 these quotients, truncated, are exact.
    return _mm512_cvttpd_epu64(_mm512_div_pd(_mm512_cvtepu64_pd(dividend), _mm512_cvtepu64_pd(divisor)));
}

constexpr Vector make_votes() {
    Vector votes{};
    for (int i = 0; i < 64; ++i) votes.byte[i] = base_votes_at(i % 16);
    return votes;
}

constexpr Vector VOTES = make_votes();

inline void store_bases(uint8_t (&base)[GROUP_BLOCKS], __m512i bases) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(base), _mm512_cvtepi64_epi8(bases));
}

// Refine eight guesses as choose_base in reference.py does.
inline void refine_eight_bases(const Exponents& exponents, uint8_t (&base)[GROUP_BLOCKS]) {
    __m512i counted[GROUP_BLOCKS];
    for (size_t i = 0; i < GROUP_BLOCKS; ++i) {
        const __m512i first = _mm512_set1_epi8(char(base[i] - 3));
        __m512i votes = _mm512_setzero_si512();
        for (int c = 0; c < CHUNKS; ++c) {
            const __m512i offset = _mm512_sub_epi8(load_vector(exponents[i] + CHUNK * c), first);
            const __m512i index = _mm512_min_epu8(offset, _mm512_set1_epi8(15));
            votes = _mm512_add_epi8(votes, _mm512_shuffle_epi8(vector_of(VOTES), index));
        }
        const __m512i four_bits = _mm512_set1_epi8(15);
        counted[i] = sum_both(_mm512_and_si512(votes, four_bits),
                              _mm512_and_si512(_mm512_srli_epi16(votes, 4), four_bits));
    }
    const __m512i both = combine_elements<Sum>(counted);
    const __m512i even = _mm512_set1_epi64(BLOCK_COUNT);
    const __m512i one = _mm512_set1_epi64(1);
    const __mmask8 down = _mm512_cmpgt_epu64_mask(low_half(both), even);
    const __mmask8 up = _mm512_cmpgt_epu64_mask(high_half(both), even) & ~down;
    const __m512i guess = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(base)));
    store_bases(base, _mm512_mask_add_epi64(_mm512_mask_sub_epi64(guess, down, guess, one), up, guess, one));
}

// --- Bits of bytes -------------------------------------------------------------------------------------------------

constexpr uint64_t EYE = 0x8040201008040201;  // byte j is 1 << j
constexpr uint64_t REVERSED_BITS = 0x8040201008040201;  // as a matrix over bits, in the order that GFNI has them

constexpr Vector EVEN_BIT_PLANES_FIRST = planes_first({0, 2, 4, 6, 1, 3, 5, 7});

// Gather the bits of 64 bytes in eight planes of 64 bits.
inline __m512i gather_planes(__m512i bytes, const Vector& order) {
    // GFNI multiplies matrices of bits; with the bytes as the matrix it transposes them, but turns the bits around.
    const __m512i transposed = _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64(EYE), bytes, 0);
    const __m512i in_order = _mm512_gf2p8affine_epi64_epi8(transposed, _mm512_set1_epi64(REVERSED_BITS), 0);
    return _mm512_permutexvar_epi8(vector_of(order), in_order);
}

// --- Encoding the levels -------------------------------------------------------------------------------------------

constexpr Vector make_deeper_codes(int number) {
    Vector table{};
    for (int i = 0; i < 64; ++i) table.byte[i] = deeper_codes_at(i % 16, number);
    return table;
}

constexpr Vector DEEPER_CODES[TABLES] = {make_deeper_codes(SKEWED), make_deeper_codes(FALLING),
                                         make_deeper_codes(SYMMETRIC)};

// What choose_table in reference.py compares, as votes by the same index: the low five bits for the symmetric table,
// the high ones for the falling one, so that two vectors of them can be added.
constexpr int EVEN_SYMMETRIC = 4;
constexpr int EVEN_FALLING = 1;
constexpr int FALLING_SHIFT = 5;

constexpr Vector make_table_votes() {
    Vector votes{};
    for (int i = 0; i < 64; ++i) {
        const int o = DISTANCE_BIAS - i % 16;
        const int symmetric = o == 2 ? 5 : o == -4 ? -1 : o == -7 ? -4 : 0;
        const int falling = o == -5 ? 1 : o == 1 ? -1 : 0;
        votes.byte[i] = uint8_t((falling + EVEN_FALLING) << FALLING_SHIFT | (symmetric + EVEN_SYMMETRIC));
    }
    return votes;
}

constexpr Vector TABLE_VOTES = make_table_votes();

// --- Decoding the levels -------------------------------------------------------------------------------------------

// 0, 1, ..., 63 again and again: from any place in the first period on it is an index that rotates.
struct alignas(64) Rotation {
    uint8_t byte[128];
};

constexpr Rotation make_rotation() {
    Rotation rotation{};
    for (int i = 0; i < 128; ++i) rotation.byte[i] = uint8_t(i % 64);
    return rotation;
}

constexpr Rotation ROTATION = make_rotation();

// Move every byte down by 0 to 64 places; those that leave at the bottom come in at the top.
inline __m512i rotate_down(__m512i bytes, int places) {
    return _mm512_permutexvar_epi8(load_vector(ROTATION.byte + places), bytes);
}

struct Splats {
    Vector offset[3];
};

// A level's offsets, each in every byte.
constexpr Splats splats(const int (&offsets)[3]) {
    Splats result{};
    for (int code = 0; code < 3; ++code) {
        for (int i = 0; i < 64; ++i) result.offset[code].byte[i] = uint8_t(offsets[code]);
    }
    return result;
}

constexpr Splats OFFSET_SPLATS[TABLES][3] = {
    {splats(OFFSETS[0][0]), splats(OFFSETS[0][1]), splats(OFFSETS[0][2])},
    {splats(OFFSETS[1][0]), splats(OFFSETS[1][1]), splats(OFFSETS[1][2])},
    {splats(OFFSETS[2][0]), splats(OFFSETS[2][1]), splats(OFFSETS[2][2])},
};

// The exponents that one level's codes stand for, in every byte.
struct Level {
    __m512i of_code[3];

    Level(const Splats& splats, __m512i base) {
        for (int code = 0; code < 3; ++code) of_code[code] = _mm512_add_epi8(base, vector_of(splats.offset[code]));
    }

    // Those that are DEEPER are the next level's, which stand in order in a vector.
    __m512i exponents(Codes codes, __m512i next) const {
        const __mmask64 first = codes.first;
        const __mmask64 second = codes.second;
        const __m512i exponent = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(of_code[0], first, of_code[1]), second,
                                                      of_code[2]);
        return _mm512_mask_expand_epi8(exponent, _kand_mask64(first, second), next);
    }
};

struct Kernels {
    template <class D>
    static INLINE void split(const uint8_t* source, uint8_t* static_part, uint8_t* exponent, Split& split) {
        split.origin = 0;
        split.far_apart = false;
        if constexpr (D::HAS_ORIGIN) split.far_apart = !find_origin(source, split.origin);
        if (split.far_apart) return;
        Fields<D> fields[CHUNKS];
        __m512i least = _mm512_set1_epi8(-1);
#pragma GCC unroll 4
        for (int c = 0; c < CHUNKS; ++c) {
            split_chunk(source + 64 * ITEMSIZE<D> * c, fields[c], split.origin);
            store_vector(exponent + 64 * c, fields[c].exponent);
            write_rest<D>(fields[c].rest, c, static_part);
            least = _mm512_min_epu8(least, fields[c].exponent);
        }
        split.mask = write_low_planes<D>(fields, static_part + D::CODED_STATIC_NBYTES);
        split.count = BLOCK_COUNT;
        if (_mm512_testn_epi8_mask(least, least)) find_present<D>(fields, split);
    }

    template <class D>
    static void find_present(const Fields<D> (&fields)[CHUNKS], Split& split) {
        for (int c = 0; c < CHUNKS; ++c) {
            __m512i any = _mm512_or_si512(fields[c].exponent, fields[c].rest);
            for (int i = 0; i < LOW_VECTORS<D>; ++i) any = _mm512_or_si512(any, fields[c].low[i]);
            split.present.word[c] = _mm512_test_epi8_mask(any, any);
        }
        split.count = split.present.count();
    }

    static void guess_bases(const Exponents& exponents, uint8_t (&base)[GROUP_BLOCKS]) {
        store_bases(base, guess_eight_bases(exponents));
    }

    static void refine_bases(const Exponents& exponents, uint8_t (&base)[GROUP_BLOCKS]) {
        refine_eight_bases(exponents, base);
    }

    struct Encoding {
        // The values that reach level 1, in order, and zeros up to a multiple of two vectors.
        alignas(64) uint8_t distance[BLOCK_COUNT + 2 * CHUNK] = {};
        // For each vector of them, the planes of DEEPER_CODES.
        alignas(64) uint64_t plane[CHUNKS][8];
        int count = 0;
        uint8_t base;
        int table;
    };

    static INLINE void encode_level_0(const uint8_t* exponent, uint8_t base, uint8_t* planes, Encoding& encoding) {
        const __m512i bases = _mm512_set1_epi8(char(base));
        const __m512i deeper_code = _mm512_set1_epi8(DEEPER);
        Chunks code;
        int count = 0;
        for (int c = 0; c < CHUNKS; ++c) {
            const __m512i distance = _mm512_sub_epi8(bases, load_vector(exponent + CHUNK * c));
            code[c] = _mm512_min_epu8(distance, deeper_code);
            const __mmask64 deeper = _mm512_cmpge_epu8_mask(distance, deeper_code);
            store_vector(encoding.distance + count, _mm512_maskz_compress_epi8(deeper, distance));
            count += count_ones(deeper);
        }
        for (int c = 0; c < 2; ++c) store_vector(encoding.distance + count + CHUNK * c, _mm512_setzero_si512());
        // The codes of four values in a byte.
        const __m512i low_codes = _mm512_or_si512(code[0], _mm512_slli_epi16(code[1], 2));
        const __m512i high_codes = _mm512_or_si512(_mm512_slli_epi16(code[2], 4), _mm512_slli_epi16(code[3], 6));
        const __m512i codes = _mm512_or_si512(low_codes, high_codes);
        store_vector(planes, gather_planes(codes, EVEN_BIT_PLANES_FIRST));
        encoding.count = count;
        encoding.base = base;
    }

    static INLINE void choose_tables(Encoding (&encoding)[GROUP_BLOCKS]) {
        __m512i counted[GROUP_BLOCKS];
        for (size_t i = 0; i < GROUP_BLOCKS; ++i) {
            const __m512i even = _mm512_set1_epi64(2 * 8 * (EVEN_FALLING * (1LL << 32) + EVEN_SYMMETRIC));
            // Two vectors are nearly always enough, and one so seldom that asking would cost more.
            const __m512i others = encoding[i].count > 2 * CHUNK ? votes_of_two(encoding[i], 2) : even;
            counted[i] = _mm512_add_epi64(votes_of_two(encoding[i], 0), others);
        }
        const __m512i both = combine_elements<Sum>(counted);
        const __mmask8 symmetric =
            _mm512_cmpgt_epu64_mask(low_half(both), _mm512_set1_epi64(EVEN_SYMMETRIC * BLOCK_COUNT));
        const __mmask8 falling =
            _mm512_cmpgt_epu64_mask(high_half(both), _mm512_set1_epi64(EVEN_FALLING * BLOCK_COUNT));
        const __m512i table = _mm512_mask_mov_epi64(_mm512_maskz_set1_epi64(falling, FALLING), symmetric,
                                                    _mm512_set1_epi64(SYMMETRIC));
        uint8_t tables[GROUP_BLOCKS];
        store_bases(tables, table);
        for (size_t i = 0; i < GROUP_BLOCKS; ++i) encoding[i].table = tables[i];
    }

    // The index into the tables by distance of 64 values that reach level 1.
    static INLINE __m512i deeper_index(const Encoding& encoding, int c) {
        const __m512i distance = load_vector(encoding.distance + CHUNK * c);
        return _mm512_min_epu8(_mm512_add_epi8(distance, _mm512_set1_epi8(DISTANCE_BIAS)), _mm512_set1_epi8(15));
    }

    // Partial sums of both votes of 128 values that reach level 1.
    static INLINE __m512i votes_of_two(const Encoding& encoding, int c) {
        const __m512i table = vector_of(TABLE_VOTES);
        const __m512i votes = _mm512_add_epi8(_mm512_shuffle_epi8(table, deeper_index(encoding, c)),
                                              _mm512_shuffle_epi8(table, deeper_index(encoding, c + 1)));
        return sum_both(_mm512_and_si512(votes, _mm512_set1_epi8((1 << FALLING_SHIFT) - 1)),
                        _mm512_and_si512(_mm512_srli_epi16(votes, FALLING_SHIFT), _mm512_set1_epi8(7)));
    }

    static INLINE void code_deeper_levels(Encoding& encoding) {
        encoding.count <= 2 * CHUNK ? code_vectors<2>(encoding) : code_vectors<CHUNKS>(encoding);
    }

    template <int VECTORS>
    static INLINE void code_vectors(Encoding& encoding) {
        const __m512i code_of = vector_of(DEEPER_CODES[encoding.table]);
        for (int c = 0; c < VECTORS; ++c) {
            const __m512i codes = _mm512_shuffle_epi8(code_of, deeper_index(encoding, c));
            _mm512_store_si512(encoding.plane[c], gather_planes(codes, BYTES_TRANSPOSED));
        }
    }

    static INLINE uint8_t* write_deeper_levels(const Encoding& encoding, uint8_t* out) {
        const uint64_t* const a = encoding.plane[0];
        const uint64_t* const b = encoding.plane[1];
        const int a_deeper = count_ones(a[DEEPER_1]);
        const int count_2 = a_deeper + count_ones(b[DEEPER_1]);
        if (encoding.count > 2 * CHUNK || count_2 >= CHUNK) return write_many_deeper(encoding, out);

        write_rows({a[FIRST_1], a[SECOND_1]}, count_from(0, encoding.count), out);
        write_rows({b[FIRST_1], b[SECOND_1]}, count_from(CHUNK, encoding.count), out + 16);
        out += rows_nbytes(encoding.count);
        const Codes codes_2 = {
            _pext_u64(a[FIRST_2], a[DEEPER_1]) | _pext_u64(b[FIRST_2], b[DEEPER_1]) << a_deeper,
            _pext_u64(a[SECOND_2], a[DEEPER_1]) | _pext_u64(b[SECOND_2], b[DEEPER_1]) << a_deeper,
        };
        write_rows(codes_2, count_2, out);
        out += rows_nbytes(count_2);
        const __m512i bases = _mm512_set1_epi8(char(encoding.base));
        for (int c = 0; c < 2; ++c) out = write_escapes(encoding, c, bases, out);
        return out;
    }

    static uint8_t* write_escapes(const Encoding& encoding, int c, __m512i bases, uint8_t* out) {
        const __m512i exponent = _mm512_sub_epi8(bases, load_vector(encoding.distance + CHUNK * c));
        store_vector(out, _mm512_maskz_compress_epi8(encoding.plane[c][DEEPER_2], exponent));
        return out + count_ones(encoding.plane[c][DEEPER_2]);
    }

    // The same for any number of values.
    NOINLINE static uint8_t* write_many_deeper(const Encoding& encoding, uint8_t* out) {
        const int chunks = (encoding.count + CHUNK - 1) / CHUNK;
        Bits first = {};  // level 2's codes of all vectors
        Bits second = {};
        int count_2 = 0;
        for (int c = 0; c < chunks; ++c) {
            const uint64_t* const plane = encoding.plane[c];
            write_rows({plane[FIRST_1], plane[SECOND_1]}, count_from(CHUNK * c, encoding.count), out + 16 * c);
            append_bits(first, count_2, _pext_u64(plane[FIRST_2], plane[DEEPER_1]));
            append_bits(second, count_2, _pext_u64(plane[SECOND_2], plane[DEEPER_1]));
            count_2 += count_ones(plane[DEEPER_1]);
        }
        out += rows_nbytes(encoding.count);
        for (int c = 0; CHUNK * c < count_2; ++c) {
            write_rows({first.word[c], second.word[c]}, count_from(CHUNK * c, count_2), out + 16 * c);
        }
        out += rows_nbytes(count_2);
        const __m512i bases = _mm512_set1_epi8(char(encoding.base));
        for (int c = 0; c < chunks; ++c) out = write_escapes(encoding, c, bases, out);
        return out;
    }

    struct Decoding {
        alignas(64) uint8_t exponent[BLOCK_COUNT + CHUNK];  // of the values that reach level 1, in order
        uint8_t escape[BLOCK_COUNT + CHUNK];
        Codes level_1[CHUNKS];
        Codes level_2[CHUNKS];
        int count_1;
        int count_2;
        uint8_t base;
        int table;
    };

    static INLINE const uint8_t* read_codes(const uint8_t* planes, uint8_t base, int table,
                                            const uint8_t* deeper_levels, Decoding& decoding) {
        int count_1 = 0;
        for (int c = 0; c < CHUNKS; ++c) count_1 += count_ones(level_0(planes, c).deeper());
        const Codes a1 = read_rows(deeper_levels, count_from(0, count_1));
        const Codes b1 = read_rows(deeper_levels + 16, count_from(CHUNK, count_1));
        int count_2 = count_ones(a1.deeper()) + count_ones(b1.deeper());
        decoding.level_1[0] = a1;
        decoding.level_1[1] = b1;
        for (int c = 2; CHUNK * c < count_1; ++c) {
            decoding.level_1[c] = read_rows(deeper_levels + 16 * c, count_from(CHUNK * c, count_1));
            count_2 += count_ones(decoding.level_1[c].deeper());
        }
        const uint8_t* const rows_2 = deeper_levels + rows_nbytes(count_1);
        decoding.level_2[0] = read_rows(rows_2, count_from(0, count_2));
        int count_3 = count_ones(decoding.level_2[0].deeper());
        for (int c = 1; CHUNK * c < count_2; ++c) {
            decoding.level_2[c] = read_rows(rows_2 + 16 * c, count_from(CHUNK * c, count_2));
            count_3 += count_ones(decoding.level_2[c].deeper());
        }
        const uint8_t* const escapes = rows_2 + rows_nbytes(count_2);
        store_vector(decoding.escape, load_vector(escapes));
        for (int start = CHUNK; start < count_3; start += CHUNK) {
            store_vector(decoding.escape + start, load_vector(escapes + start));
        }
        decoding.count_1 = count_1;
        decoding.count_2 = count_2;
        decoding.base = base;
        decoding.table = table;
        return escapes + count_3;
    }

    static Codes level_0(const uint8_t* planes, int c) {
        return {load<uint64_t>(planes + 8 * c), load<uint64_t>(planes + BIT_PLANE_NBYTES + 8 * c)};
    }

    static INLINE void decode_deeper_levels(Decoding& decoding) {
        if (decoding.count_1 > 2 * CHUNK || decoding.count_2 > CHUNK) return decode_many_deeper(decoding);
        const Splats (&offsets)[3] = OFFSET_SPLATS[decoding.table];
        const __m512i base = _mm512_set1_epi8(char(decoding.base));
        const Level level_1(offsets[1], base);
        const Level level_2(offsets[2], base);
        const Codes a1 = decoding.level_1[0];
        const __m512i exponent_2 = level_2.exponents(decoding.level_2[0], load_vector(decoding.escape));
        store_vector(decoding.exponent, level_1.exponents(a1, exponent_2));
        store_vector(decoding.exponent + CHUNK,
                     level_1.exponents(decoding.level_1[1], rotate_down(exponent_2, count_ones(a1.deeper()))));
    }

    // The same for any number of values.
    NOINLINE static void decode_many_deeper(Decoding& decoding) {
        alignas(64) uint8_t exponent_2[BLOCK_COUNT + CHUNK];
        const Splats (&offsets)[3] = OFFSET_SPLATS[decoding.table];
        const __m512i base = _mm512_set1_epi8(char(decoding.base));
        decode_level(Level(offsets[2], base), decoding.level_2, decoding.count_2, decoding.escape, exponent_2);
        decode_level(Level(offsets[1], base), decoding.level_1, decoding.count_1, exponent_2, decoding.exponent);
    }

    static void decode_level(const Level& level, const Codes (&codes)[CHUNKS], int count, const uint8_t* next,
                             uint8_t* exponent) {
        for (int c = 0; CHUNK * c < count; ++c) {
            store_vector(exponent + CHUNK * c, level.exponents(codes[c], load_vector(next)));
            next += count_ones(codes[c].deeper());
        }
    }

    template <class D>
    static void join(const Parts& parts, const Decoding& decoding, uint8_t* target) {
        join_chunks<D, false>(parts, decoding, {}, target);
    }

    template <class D>
    static void join_sparse(const Parts& parts, const Decoding& decoding, const Bits& present, uint8_t* target) {
        join_chunks<D, true>(parts, decoding, present, target);
    }

    template <class D, bool SPARSE>
    static INLINE void join_chunks(const Parts& parts, const Decoding& decoding, const Bits& present, uint8_t* target) {
        const Level level(OFFSET_SPLATS[0][0], _mm512_set1_epi8(char(decoding.base)));
        const LowPlanes<D> low_planes(parts.planes + D::CODED_STATIC_NBYTES, parts.mask);
        const uint8_t* next = decoding.exponent;
#pragma GCC unroll 4
        for (int c = 0; c < CHUNKS; ++c) {
            const Codes codes = level_0(parts.planes + D::REST_NBYTES, c);
            Fields<D> fields;
            fields.exponent = level.exponents(codes, load_vector(next));
            if (SPARSE) fields.exponent = _mm512_maskz_mov_epi8(present.word[c], fields.exponent);
            next += count_ones(codes.deeper());
            fields.rest = read_rest<D>(parts.planes, c);
            low_planes.read(c, fields);
            join_chunk(fields, parts.origin, target + 64 * ITEMSIZE<D> * c);
        }
    }

    static void compact_bytes(const Bits& present, const uint8_t* bytes, uint8_t* out) {
        for (int c = 0; c < CHUNKS; ++c) {
            store_vector(out, _mm512_maskz_compress_epi8(present.word[c], load_vector(bytes + CHUNK * c)));
            out += count_ones(present.word[c]);
        }
    }

    static void expand_bytes(const Bits& present, const uint8_t* bytes, uint8_t* out) {
        for (int c = 0; c < CHUNKS; ++c) {
            store_vector(out + CHUNK * c, _mm512_maskz_expand_epi8(present.word[c], load_vector(bytes)));
            bytes += count_ones(present.word[c]);
        }
    }

    static void fill_end(uint8_t* bytes, int count, uint8_t value) {
        for (int c = 0; c < CHUNKS; ++c) {
            const __mmask64 end = ~first_bits(~uint64_t(0), count_from(CHUNK * c, count));
            _mm512_mask_storeu_epi8(bytes + CHUNK * c, end, _mm512_set1_epi8(char(value)));
        }
    }

    static uint64_t extract(uint64_t bits, uint64_t mask) { return _pext_u64(bits, mask); }
    static uint64_t deposit(uint64_t bits, uint64_t mask) { return _pdep_u64(bits, mask); }
};

}  // namespace
}  // namespace zipccl

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace zipccl {
namespace {

bool supported() {
    const CpuFeatures cpu = cpu_features();
    return has_all(cpu.saved_registers, SAVES_ZMM) && has_all(cpu.leaf_1_ecx, bit_POPCNT) &&
           has_all(cpu.leaf_7_ebx, bit_AVX2 | bit_BMI | bit_BMI2 | bit_AVX512F | bit_AVX512BW | bit_AVX512DQ |
                                       bit_AVX512VL) &&
           has_all(cpu.leaf_7_ecx, bit_AVX512VBMI | bit_AVX512VBMI2 | bit_GFNI);
}

}  // namespace

const Implementation avx512 = {
    "avx512", supported, encode_body_of<Kernels>, decode_body_of<Kernels>, decode_reduce_of<Kernels>,
    pack_encode_of<Kernels>, widen, accumulate, pack,
};

}  // namespace zipccl

#endif
