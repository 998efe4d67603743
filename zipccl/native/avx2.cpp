// The codec for processors with AVX2 and BMI2 (Intel from Haswell on; AMD from Zen 3 on, before which pext and pdep are
// slow).
//
// Values that reach a deeper level are brought together and go back eight at a time, by shuffles that a table has for
// each of the 256 ways in which they can lie; planes of bits come from bytes by the mask of their highest bits.

#include "codec.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include "cpu.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt")
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

constexpr int VECTOR = 32;
constexpr int VECTORS = BLOCK_COUNT / VECTOR;

INLINE __m256i load_vector(const uint8_t* address) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(address));
}
INLINE void store_vector(uint8_t* address, __m256i vector) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(address), vector);
}
INLINE __m128i load_eight(const uint8_t* address) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(address)); }

// Packing and unpacking work in halves of vectors: exchange the middle quarters.
INLINE __m256i in_order(__m256i vector) { return _mm256_permute4x64_epi64(vector, 0xD8); }

INLINE uint32_t zeros_of(__m256i bytes) {
    return uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
}

// One bit of each of 32 bytes.
INLINE uint32_t plane_of(__m256i bytes, int bit) {
    return uint32_t(_mm256_movemask_epi8(_mm256_sll_epi16(bytes, _mm_cvtsi32_si128(7 - bit))));
}

// Bytes of all ones where a bit is one.
INLINE __m256i bytes_of(uint32_t bits) {
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)), which);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
}

inline uint64_t gather_plane(const uint8_t* bytes, int bit) {
    return plane_of(load_vector(bytes), bit) | uint64_t(plane_of(load_vector(bytes + VECTOR), bit)) << 32;
}

inline void spread_plane(uint64_t bits, int bit, uint8_t* bytes) {
    const __m256i one = _mm256_set1_epi8(char(1 << bit));
    store_vector(bytes, _mm256_and_si256(bytes_of(uint32_t(bits)), one));
    store_vector(bytes + VECTOR, _mm256_and_si256(bytes_of(uint32_t(bits >> 32)), one));
}

#include "values.hpp"

// A table of 16 bytes in both halves of a vector.
struct alignas(32) Table {
    uint8_t byte[VECTOR];
};

INLINE __m256i vector_of(const Table& table) { return load_vector(table.byte); }

constexpr Table make_deeper_codes(int number) {
    Table table{};
    for (int i = 0; i < VECTOR; ++i) table.byte[i] = deeper_codes_at(i % 16, number);
    return table;
}

constexpr Table make_base_votes() {
    Table table{};
    for (int i = 0; i < VECTOR; ++i) table.byte[i] = base_votes_at(i % 16);
    return table;
}

constexpr Table DEEPER_CODES[TABLES] = {make_deeper_codes(SKEWED), make_deeper_codes(FALLING),
                                        make_deeper_codes(SYMMETRIC)};
constexpr Table BASE_VOTES = make_base_votes();

// For each set of eight places, the shuffles that compact what stands there, and expand it again.
struct Shuffles {
    uint8_t compact[256][8];
    uint8_t expand[256][8];
};

constexpr Shuffles make_shuffles() {
    Shuffles shuffles{};
    for (int places = 0; places < 256; ++places) {
        uint8_t count = 0;
        for (int i = 0; i < 8; ++i) shuffles.compact[places][i] = 0x80;
        for (int i = 0; i < 8; ++i) {
            const bool taken = places >> i & 1;
            shuffles.expand[places][i] = taken ? count : 0x80;
            if (taken) shuffles.compact[places][count++] = uint8_t(i);
        }
    }
    return shuffles;
}

constexpr Shuffles SHUFFLES = make_shuffles();

// Bring together those of 64 bytes whose bit is one; up to 8 bytes more are written. Return their end.
INLINE uint8_t* compact_64(uint64_t places, const uint8_t* bytes, uint8_t* out) {
    for (int i = 0; i < 8; ++i, places >>= 8) {
        const __m128i compact = _mm_shuffle_epi8(load_eight(bytes + 8 * i), load_eight(SHUFFLES.compact[places & 255]));
        store(out, uint64_t(_mm_cvtsi128_si64(compact)));
        out += _mm_popcnt_u64(places & 255);
    }
    return out;
}

// Undo that for 32 bytes, which are zero where the bit is; next moves on.
INLINE __m256i expand_32(uint32_t places, const uint8_t*& next) {
    __m128i eight[4];
    for (int i = 0; i < 4; ++i, places >>= 8) {
        eight[i] = _mm_shuffle_epi8(load_eight(next), load_eight(SHUFFLES.expand[places & 255]));
        next += _mm_popcnt_u64(places & 255);
    }
    return _mm256_set_m128i(_mm_unpacklo_epi64(eight[2], eight[3]), _mm_unpacklo_epi64(eight[0], eight[1]));
}

INLINE uint64_t sum_of(__m256i bytes) {
    const __m256i sums = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return uint64_t(_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1));
}

INLINE uint8_t greatest_of(__m256i bytes) {
    __m128i most = _mm_max_epu8(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    // The least of words is found at once; so turn the bytes around.
    most = _mm_xor_si128(most, _mm_set1_epi8(-1));
    most = _mm_min_epu8(most, _mm_srli_epi16(most, 8));
    return uint8_t(~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_and_si128(most, _mm_set1_epi16(255)))));
}

// bfloat16 has its own steps; for the other types the compiler's are good enough.
INLINE void split_values(Bfloat16, const uint8_t* source, uint8_t* static_part, uint8_t* exponent, Split& split) {
    const __m256i low_bytes = _mm256_set1_epi16(255);
    __m256i least = _mm256_set1_epi8(-1);
    for (int v = 0; v < VECTORS; ++v) {
        __m256i word[2];
        for (int half = 0; half < 2; ++half) {
            const __m256i value = load_vector(source + 2 * VECTOR * v + VECTOR * half);
            word[half] = _mm256_or_si256(_mm256_slli_epi16(value, 1), _mm256_srli_epi16(value, 15));
        }
        const __m256i rests = in_order(_mm256_packus_epi16(_mm256_and_si256(word[0], low_bytes),
                                                           _mm256_and_si256(word[1], low_bytes)));
        const __m256i exponents = in_order(_mm256_packus_epi16(_mm256_srli_epi16(word[0], 8),
                                                               _mm256_srli_epi16(word[1], 8)));
        store_vector(static_part + VECTOR * v, rests);
        store_vector(exponent + VECTOR * v, exponents);
        least = _mm256_min_epu8(least, exponents);
    }
    split.mask = 0;
    split.origin = 0;
    split.far_apart = false;
    split.count = BLOCK_COUNT;
    if (!zeros_of(least)) return;
    for (int w = 0; w < WORDS; ++w) {
        uint64_t zeros = 0;
        for (int half = 0; half < 2; ++half) {
            const int at = 64 * w + VECTOR * half;
            const __m256i any = _mm256_or_si256(load_vector(exponent + at), load_vector(static_part + at));
            zeros |= uint64_t(zeros_of(any)) << VECTOR * half;
        }
        split.present.word[w] = ~zeros;
    }
    split.count = split.present.count();
}

INLINE void join_32_values(__m256i exponent, __m256i rest, uint8_t* target) {
    const __m256i word[2] = {_mm256_unpacklo_epi8(in_order(rest), in_order(exponent)),
                             _mm256_unpackhi_epi8(in_order(rest), in_order(exponent))};
    for (int half = 0; half < 2; ++half) {
        store_vector(target + VECTOR * half,
                     _mm256_or_si256(_mm256_srli_epi16(word[half], 1), _mm256_slli_epi16(word[half], 15)));
    }
}

struct Kernels {
    template <class D>
    static INLINE void split(const uint8_t* source, uint8_t* static_part, uint8_t* exponent, Split& split) {
        if constexpr (std::is_same_v<D, Bfloat16>) {
            split_values(D{}, source, static_part, exponent, split);
        } else {
            split_values<D>(source, static_part, exponent, split);
        }
    }

    // As the first guess of choose_base in reference.py.
    static INLINE void guess_bases(const uint8_t (&exponents)[GROUP_BLOCKS][BLOCK_COUNT],
                                   uint8_t (&base)[GROUP_BLOCKS]) {
        const __m256i zero = _mm256_setzero_si256();
        for (size_t i = 0; i < GROUP_BLOCKS; ++i) {
            __m256i totals = zero;
            __m256i normals = zero;
            __m256i greatest = zero;
            for (int v = 0; v < VECTORS; ++v) {
                const __m256i exponent = load_vector(exponents[i] + VECTOR * v);
                totals = _mm256_add_epi64(totals, _mm256_sad_epu8(exponent, zero));
                normals = _mm256_add_epi8(normals, _mm256_min_epu8(exponent, _mm256_set1_epi8(1)));
                greatest = _mm256_max_epu8(greatest, exponent);
            }
            const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(totals), _mm256_extracti128_si256(totals, 1));
            const uint32_t total = uint32_t(_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1));
            const uint32_t normal = uint32_t(sum_of(normals));
            const uint32_t dividend = 2 * total + (2u * greatest_of(greatest) + 3) * normal;
            base[i] = uint8_t(dividend / (normal ? 4 * normal : 1));
        }
    }

    // As its refinement.
    static INLINE void refine_bases(const uint8_t (&exponents)[GROUP_BLOCKS][BLOCK_COUNT],
                                    uint8_t (&base)[GROUP_BLOCKS]) {
        const __m256i four_bits = _mm256_set1_epi8(15);
        for (size_t i = 0; i < GROUP_BLOCKS; ++i) {
            const __m256i first = _mm256_set1_epi8(char(base[i] - 3));
            __m256i down = _mm256_setzero_si256();
            __m256i up = _mm256_setzero_si256();
            for (int half = 0; half < 2; ++half) {  // four votes of two at most stay in four bits
                __m256i votes = _mm256_setzero_si256();
                for (int v = 0; v < VECTORS / 2; ++v) {
                    const uint8_t* const some = exponents[i] + VECTOR * (VECTORS / 2 * half + v);
                    const __m256i index = _mm256_min_epu8(_mm256_sub_epi8(load_vector(some), first), four_bits);
                    votes = _mm256_add_epi8(votes, _mm256_shuffle_epi8(vector_of(BASE_VOTES), index));
                }
                down = _mm256_add_epi8(down, _mm256_and_si256(votes, four_bits));
                up = _mm256_add_epi8(up, _mm256_and_si256(_mm256_srli_epi16(votes, 4), four_bits));
            }
            const bool moves_down = sum_of(down) > BLOCK_COUNT;
            const bool moves_up = sum_of(up) > BLOCK_COUNT && !moves_down;
            base[i] = uint8_t(base[i] - moves_down + moves_up);
        }
    }

    struct Encoding {
        uint8_t distance[BLOCK_COUNT + 64];       // of the values that reach level 1, in order, then zeros
        uint64_t plane[DEEPER_PLANES][WORDS];     // of DEEPER_CODES
        int count = 0;
        uint8_t base;
        int table;
    };

    static INLINE void encode_level_0(const uint8_t* exponent, uint8_t base, uint8_t* planes, Encoding& encoding) {
        const __m256i bases = _mm256_set1_epi8(char(base));
        uint8_t distance[BLOCK_COUNT];
        for (int v = 0; v < VECTORS; ++v) {
            const __m256i distances = _mm256_sub_epi8(bases, load_vector(exponent + VECTOR * v));
            const __m256i code = _mm256_min_epu8(distances, _mm256_set1_epi8(DEEPER));
            store_vector(distance + VECTOR * v, distances);
            store(planes + 4 * v, plane_of(code, 0));
            store(planes + BIT_PLANE_NBYTES + 4 * v, plane_of(code, 1));
        }
        uint8_t* end = encoding.distance;
        for (int w = 0; w < WORDS; ++w) {
            const uint64_t first = load<uint64_t>(planes + 8 * w);
            const uint64_t second = load<uint64_t>(planes + BIT_PLANE_NBYTES + 8 * w);
            end = compact_64(first & second, distance + 64 * w, end);
        }
        store_vector(end, _mm256_setzero_si256());
        store_vector(end + VECTOR, _mm256_setzero_si256());
        encoding.count = int(end - encoding.distance);
        encoding.base = base;
    }

    // As choose_table in reference.py.
    static INLINE void choose_tables(Encoding (&encoding)[GROUP_BLOCKS]) {
        for (Encoding& each : encoding) {
            int symmetric = 0;
            int falling = 0;
            for (int start = 0; start < each.count; start += VECTOR) {
                const __m256i distance = load_vector(each.distance + start);
                symmetric += 5 * occurrences(distance, -2) - occurrences(distance, 4) - 4 * occurrences(distance, 7);
                falling += occurrences(distance, 5) - occurrences(distance, -1);
            }
            const bool is_symmetric = symmetric > 0;
            each.table = is_symmetric * SYMMETRIC + (falling > 0 && !is_symmetric) * FALLING;
        }
    }

    static INLINE int occurrences(__m256i bytes, int wanted) {
        const __m256i equal = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(char(wanted)));
        return int(_mm_popcnt_u32(uint32_t(_mm256_movemask_epi8(equal))));
    }

    static INLINE void code_deeper_levels(Encoding& encoding) {
        const __m256i code_of = vector_of(DEEPER_CODES[encoding.table]);
        for (int w = 0; 64 * w < encoding.count; ++w) {
            __m256i codes[2];
            for (int half = 0; half < 2; ++half) {
                const __m256i distance = load_vector(encoding.distance + 64 * w + VECTOR * half);
                const __m256i biased = _mm256_add_epi8(distance, _mm256_set1_epi8(DISTANCE_BIAS));
                codes[half] = _mm256_shuffle_epi8(code_of, _mm256_min_epu8(biased, _mm256_set1_epi8(15)));
            }
            for (int plane = 0; plane < DEEPER_PLANES; ++plane) {
                encoding.plane[plane][w] = plane_of(codes[0], plane) | uint64_t(plane_of(codes[1], plane)) << 32;
            }
        }
    }

    static INLINE uint8_t* write_deeper_levels(const Encoding& encoding, uint8_t* out) {
        const auto& plane = encoding.plane;
        Bits first = {};  // level 2's codes
        Bits second = {};
        int count_2 = 0;
        for (int w = 0; 64 * w < encoding.count; ++w) {
            write_rows({plane[FIRST_1][w], plane[SECOND_1][w]}, count_from(64 * w, encoding.count), out + 16 * w);
            append_bits(first, count_2, _pext_u64(plane[FIRST_2][w], plane[DEEPER_1][w]));
            append_bits(second, count_2, _pext_u64(plane[SECOND_2][w], plane[DEEPER_1][w]));
            count_2 += int(_mm_popcnt_u64(plane[DEEPER_1][w]));
        }
        out += rows_nbytes(encoding.count);
        for (int w = 0; 64 * w < count_2; ++w) {
            write_rows({first.word[w], second.word[w]}, count_from(64 * w, count_2), out + 16 * w);
        }
        out += rows_nbytes(count_2);
        for (int w = 0; 64 * w < encoding.count; ++w) {
            for (uint64_t left = plane[DEEPER_2][w]; left; left &= left - 1) {
                *out++ = uint8_t(encoding.base - encoding.distance[64 * w + int(_tzcnt_u64(left))]);
            }
        }
        return out;
    }

    struct Decoding {
        uint8_t exponent[BLOCK_COUNT + 64];  // of the values that reach level 1
        uint8_t escape[BLOCK_COUNT + 64];
        Codes level_1[WORDS];
        Codes level_2[WORDS];
        int count_1;
        int count_2;
        uint8_t base;
        int table;
    };

    static INLINE const uint8_t* read_codes(const uint8_t* planes, uint8_t base, int table,
                                            const uint8_t* deeper_levels, Decoding& decoding) {
        int count_1 = 0;
        for (int w = 0; w < WORDS; ++w) count_1 += int(_mm_popcnt_u64(level_0(planes, w).deeper()));
        int count_2 = 0;
        const uint8_t* const rows_2 = read_level(deeper_levels, count_1, decoding.level_1, count_2);
        int count_3 = 0;
        const uint8_t* const escapes = read_level(rows_2, count_2, decoding.level_2, count_3);
        for (int start = 0; start < count_3 + 8; start += VECTOR) {
            store_vector(decoding.escape + start, load_vector(escapes + start));
        }
        decoding.count_1 = count_1;
        decoding.count_2 = count_2;
        decoding.base = base;
        decoding.table = table;
        return escapes + count_3;
    }

    static INLINE Codes level_0(const uint8_t* planes, int w) {
        return {load<uint64_t>(planes + 8 * w), load<uint64_t>(planes + BIT_PLANE_NBYTES + 8 * w)};
    }

    // Read a level's codes and count those that are DEEPER; return the end of the rows.
    static INLINE const uint8_t* read_level(const uint8_t* rows, int count, Codes (&codes)[WORDS], int& deeper) {
        for (int w = 0; 64 * w < count; ++w) {
            codes[w] = read_rows(rows + 16 * w, count_from(64 * w, count));
            deeper += int(_mm_popcnt_u64(codes[w].deeper()));
        }
        return rows + rows_nbytes(count);
    }

    static INLINE void decode_deeper_levels(Decoding& decoding) {
        uint8_t exponent_2[BLOCK_COUNT + 64];
        decode_level(decoding, 2, decoding.level_2, decoding.count_2, decoding.escape, exponent_2);
        decode_level(decoding, 1, decoding.level_1, decoding.count_1, exponent_2, decoding.exponent);
    }

    static INLINE void decode_level(const Decoding& decoding, int level, const Codes (&codes)[WORDS], int count,
                                    const uint8_t* next, uint8_t* exponent) {
        const __m256i of_code = exponents_of_codes(OFFSETS[decoding.table][level], decoding.base);
        for (int start = 0; start < count; start += VECTOR) {
            store_vector(exponent + start, exponents(codes[start / 64], start % 64, of_code, next));
        }
    }

    // A level's exponents by code; those of DEEPER are zero.
    static INLINE __m256i exponents_of_codes(const int (&offset)[3], uint8_t base) {
        const uint32_t by_code = uint8_t(base + offset[0]) | uint8_t(base + offset[1]) << 8 |
                                 uint8_t(base + offset[2]) << 16;
        return _mm256_set1_epi32(int(by_code));
    }

    // The exponents of 32 codes, from bit start on; those that are DEEPER are next, in order.
    static INLINE __m256i exponents(Codes codes, int start, __m256i of_code, const uint8_t*& next) {
        const uint32_t first = uint32_t(codes.first >> start);
        const uint32_t second = uint32_t(codes.second >> start);
        const __m256i code = _mm256_or_si256(_mm256_and_si256(bytes_of(first), _mm256_set1_epi8(1)),
                                             _mm256_and_si256(bytes_of(second), _mm256_set1_epi8(2)));
        return _mm256_or_si256(_mm256_shuffle_epi8(of_code, code), expand_32(first & second, next));
    }

    template <class D>
    static INLINE void join(const Parts& parts, const Decoding& decoding, uint8_t* target) {
        join_vectors<D, false>(parts, decoding, {}, target);
    }

    template <class D>
    static INLINE void join_sparse(const Parts& parts, const Decoding& decoding, const Bits& present, uint8_t* target) {
        join_vectors<D, true>(parts, decoding, present, target);
    }

    template <class D, bool SPARSE>
    static INLINE void join_vectors(const Parts& parts, const Decoding& decoding, const Bits& present,
                                    uint8_t* target) {
        constexpr bool AT_ONCE = std::is_same_v<D, Bfloat16>;
        const __m256i of_code = exponents_of_codes(OFFSETS[0][0], decoding.base);
        const uint8_t* next = decoding.exponent;
        uint8_t exponent[BLOCK_COUNT];
        for (int v = 0; v < VECTORS; ++v) {
            const int start = v % 2 * VECTOR;
            __m256i some = exponents(level_0(parts.planes + D::REST_NBYTES, v / 2), start, of_code, next);
            if (SPARSE) some = _mm256_and_si256(some, bytes_of(uint32_t(present.word[v / 2] >> start)));
            if (AT_ONCE) {
                join_32_values(some, load_vector(parts.planes + VECTOR * v), target + 2 * VECTOR * v);
            } else {
                store_vector(exponent + VECTOR * v, some);
            }
        }
        if (!AT_ONCE) join_parts<D>(parts, exponent, target);
    }

    static void compact_bytes(const Bits& present, const uint8_t* bytes, uint8_t* out) {
        for (int w = 0; w < WORDS; ++w) out = compact_64(present.word[w], bytes + 64 * w, out);
    }

    static void expand_bytes(const Bits& present, const uint8_t* bytes, uint8_t* out) {
        for (int v = 0; v < VECTORS; ++v) {
            store_vector(out + VECTOR * v, expand_32(uint32_t(present.word[v / 2] >> v % 2 * VECTOR), bytes));
        }
    }

    static void fill_end(uint8_t* bytes, int count, uint8_t value) {
        std::memset(bytes + count, value, BLOCK_COUNT - count);
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
    return !cpu.has_slow_pdep && has_all(cpu.saved_registers, SAVES_YMM) && has_all(cpu.leaf_1_ecx, bit_POPCNT) &&
           has_all(cpu.leaf_7_ebx, bit_AVX2 | bit_BMI | bit_BMI2);
}

}  // namespace

const Implementation avx2 = {
    "avx2", supported, encode_body_of<Kernels>, decode_body_of<Kernels>, decode_reduce_of<Kernels>,
    pack_encode_of<Kernels>, widen, accumulate, pack,
};

}  // namespace zipccl

#endif
