// AVX-512: 64 values to their exponents, rests and low bits, a byte each, and back. A part of avx512.cpp.

constexpr int CHUNKS = 4;  // vectors of 64 bytes that hold one byte of each of a block's values
constexpr int CHUNK = 64;
using Chunks = __m512i[CHUNKS];

struct alignas(64) Vector {
    uint8_t byte[64];
};

inline __m512i vector_of(const Vector& constant) { return _mm512_load_si512(constant.byte); }
inline __m512i load_vector(const uint8_t* address) { return _mm512_loadu_si512(address); }
inline void store_vector(uint8_t* address, __m512i vector) { _mm512_storeu_si512(address, vector); }
inline int count_ones(uint64_t bits) { return int(_mm_popcnt_u64(bits)); }

template <class D>
constexpr int LOW_VECTORS = (D::LOW_BITS + 7) / 8;

template <class D>
constexpr int LAST_LOW_VECTOR = LOW_VECTORS<D> ? LOW_VECTORS<D> - 1 : 0;

// The parts of 64 values. Of the last low vector only as many bits count as the type has.
template <class D>
struct Fields {
    __m512i exponent;
    __m512i rest;
    __m512i low[LAST_LOW_VECTOR<D> + 1];
};

// An index of elements of 1 or 2 bytes for permutations of two vectors: every second element, from first on.
constexpr Vector every_second(int first, int width) {
    Vector index{};
    for (int i = 0; i < 64 / width; ++i) index.byte[i * width] = uint8_t(first + 2 * i);
    return index;
}

constexpr Vector EVEN_BYTES = every_second(0, 1);
constexpr Vector ODD_BYTES = every_second(1, 1);
constexpr Vector EVEN_WORDS = every_second(0, 2);
constexpr Vector ODD_WORDS = every_second(1, 2);

// An index that takes elements of two vectors in turns: the first or the second half of the result.
constexpr Vector interleaved(int half, int width) {
    Vector index{};
    const int elements = 64 / width;
    for (int i = 0; i < elements; ++i) {
        index.byte[i * width] = uint8_t(half * elements / 2 + i / 2 + i % 2 * elements);
    }
    return index;
}

constexpr Vector INTERLEAVED_BYTES[2] = {interleaved(0, 1), interleaved(1, 1)};
constexpr Vector INTERLEAVED_WORDS[2] = {interleaved(0, 2), interleaved(1, 2)};

// Byte 8 * i + j of an index for the bytes 8 * j + plane[i].
constexpr Vector planes_first(const int (&plane)[8]) {
    Vector index{};
    for (int i = 0; i < 64; ++i) index.byte[i] = uint8_t(i % 8 * 8 + plane[i / 8]);
    return index;
}

constexpr Vector BYTES_TRANSPOSED = planes_first({0, 1, 2, 3, 4, 5, 6, 7});

inline void deinterleave(__m512i first, __m512i second, __m512i& even, __m512i& odd) {
    even = _mm512_permutex2var_epi8(first, vector_of(EVEN_BYTES), second);
    odd = _mm512_permutex2var_epi8(first, vector_of(ODD_BYTES), second);
}

inline __m512i interleave(__m512i even, __m512i odd, int half) {
    return _mm512_permutex2var_epi8(even, vector_of(INTERLEAVED_BYTES[half]), odd);
}

inline __m512i interleave_words(__m512i even, __m512i odd, int half) {
    return _mm512_permutex2var_epi16(even, vector_of(INTERLEAVED_WORDS[half]), odd);
}

inline __m512i rotate_words_left(__m512i words) { return _mm512_shldi_epi16(words, words, 1); }
inline __m512i rotate_words_right(__m512i words) { return _mm512_shrdi_epi16(words, words, 1); }

inline void split_chunk(const uint8_t* source, Fields<Bfloat16>& fields, uint16_t) {
    deinterleave(rotate_words_left(load_vector(source)), rotate_words_left(load_vector(source + 64)), fields.rest,
                 fields.exponent);
}

inline void join_chunk(const Fields<Bfloat16>& fields, uint16_t, uint8_t* target) {
    for (int half = 0; half < 2; ++half) {
        const __m512i word = interleave(fields.rest, fields.exponent, half);
        store_vector(target + 64 * half, rotate_words_right(word));
    }
}

constexpr int SELECT_BY_C = 0xE4;  // of _mm512_ternarylogic: c ? a : b

inline __m512i select(__m512i mask, __m512i ones, __m512i zeros) {
    return _mm512_ternarylogic_epi64(ones, zeros, mask, SELECT_BY_C);
}

inline void split_chunk(const uint8_t* source, Fields<Float16>& fields, uint16_t) {
    const __m512i first = load_vector(source);
    const __m512i second = load_vector(source + 64);
    const __m512i word_mask = _mm512_set1_epi16(0x1FFE);
    deinterleave(select(word_mask, _mm512_srli_epi16(first, 2), _mm512_srli_epi16(first, 15)),
                 select(word_mask, _mm512_srli_epi16(second, 2), _mm512_srli_epi16(second, 15)), fields.rest,
                 fields.exponent);
    fields.low[0] = _mm512_permutex2var_epi8(first, vector_of(EVEN_BYTES), second);
}

inline void join_chunk(const Fields<Float16>& fields, uint16_t, uint8_t* target) {
    for (int half = 0; half < 2; ++half) {
        const __m512i word = interleave(fields.rest, fields.exponent, half);
        const __m512i magnitude = _mm512_slli_epi16(word, 2);
        const __m512i value = select(_mm512_set1_epi16(0x7FF8), magnitude, _mm512_slli_epi16(word, 15));
        const __m512i low = interleave(fields.low[0], _mm512_setzero_si512(), half);
        store_vector(target + 64 * half, _mm512_or_si512(value, low));
    }
}

inline void split_chunk(const uint8_t* source, Fields<Float32>& fields, uint16_t) {
    __m512i low_words[2];
    __m512i words[2];
    for (int half = 0; half < 2; ++half) {
        const __m512i first = load_vector(source + 128 * half);
        const __m512i second = load_vector(source + 128 * half + 64);
        low_words[half] = _mm512_permutex2var_epi16(first, vector_of(EVEN_WORDS), second);
        words[half] = rotate_words_left(_mm512_permutex2var_epi16(first, vector_of(ODD_WORDS), second));
    }
    deinterleave(words[0], words[1], fields.rest, fields.exponent);
    deinterleave(low_words[0], low_words[1], fields.low[0], fields.low[1]);
}

inline void join_chunk(const Fields<Float32>& fields, uint16_t, uint8_t* target) {
    for (int half = 0; half < 2; ++half) {
        const __m512i high = rotate_words_right(interleave(fields.rest, fields.exponent, half));
        const __m512i low = interleave(fields.low[0], fields.low[1], half);
        store_vector(target + 128 * half, interleave_words(low, high, 0));
        store_vector(target + 128 * half + 64, interleave_words(low, high, 1));
    }
}

// Exchange rows and columns of eight vectors of eight 8-byte elements.
inline void transpose(__m512i (&vector)[8]) {
    __m512i by_2[8];
    for (int i = 0; i < 8; i += 2) {
        by_2[i] = _mm512_unpacklo_epi64(vector[i], vector[i + 1]);
        by_2[i + 1] = _mm512_unpackhi_epi64(vector[i], vector[i + 1]);
    }
    for (int odd = 0; odd < 2; ++odd) {
        __m512i by_4[2][2];
        for (int half = 0; half < 2; ++half) {
            const __m512i a = by_2[4 * half + odd];
            const __m512i b = by_2[4 * half + 2 + odd];
            by_4[half][0] = _mm512_shuffle_i64x2(a, b, 0x88);
            by_4[half][1] = _mm512_shuffle_i64x2(a, b, 0xDD);
        }
        vector[odd] = _mm512_shuffle_i64x2(by_4[0][0], by_4[1][0], 0x88);
        vector[odd + 2] = _mm512_shuffle_i64x2(by_4[0][1], by_4[1][1], 0x88);
        vector[odd + 4] = _mm512_shuffle_i64x2(by_4[0][0], by_4[1][0], 0xDD);
        vector[odd + 6] = _mm512_shuffle_i64x2(by_4[0][1], by_4[1][1], 0xDD);
    }
}

// The bits of a float64's parts in a word that has the bytes low 0 to 4, low bits 40 to 44 (and more), rest, exponent.
constexpr int FLOAT64_REST_BYTE = 6;
constexpr int FLOAT64_EXPONENT_BYTE = 7;

// Find a block's origin; return false if its exponents are too far apart.
inline bool find_origin(const uint8_t* source, uint16_t& origin) {
    const __m512i field_mask = _mm512_set1_epi64(0x7FF0000000000000);
    __m512i greatest = _mm512_setzero_si512();
    __m512i least_less_1 = _mm512_set1_epi64(-1);  // of the fields that are not zero; zero less 1 is the greatest
    for (size_t i = 0; i < BLOCK_COUNT / 8; ++i) {
        const __m512i field = _mm512_and_si512(load_vector(source + 64 * i), field_mask);
        greatest = _mm512_max_epu64(greatest, field);
        least_less_1 = _mm512_min_epu64(least_less_1, _mm512_sub_epi64(field, _mm512_set1_epi64(1LL << 52)));
    }
    const int top = int(_mm512_reduce_max_epu64(greatest) >> 52);
    origin = uint16_t(top > 255 ? top - 255 : 0);
    return int(_mm512_reduce_min_epu64(least_less_1) >> 52) >= origin;
}

inline void split_chunk(const uint8_t* source, Fields<Float64>& fields, uint16_t origin) {
    const __m512i bytes = _mm512_set1_epi64(0x002C282018100800);  // of a value, from these bits on
    __m512i word[8];
    for (int i = 0; i < 8; ++i) {
        const __m512i value = load_vector(source + 64 * i);
        const __m512i field = _mm512_and_si512(_mm512_srli_epi64(value, 52), _mm512_set1_epi64(0x7FF));
        const __m512i exponent = _mm512_subs_epu16(field, _mm512_set1_epi64(origin));
        const __m512i sign = _mm512_srli_epi64(value, 15);
        word[i] = _mm512_multishift_epi64_epi8(bytes, value);
        word[i] = select(_mm512_set1_epi64(1LL << 48), sign, word[i]);
        word[i] = select(_mm512_set1_epi64((1LL << 56) - 1), word[i], _mm512_slli_epi64(exponent, 56));
        word[i] = _mm512_permutexvar_epi8(vector_of(BYTES_TRANSPOSED), word[i]);
    }
    transpose(word);
    for (int i = 0; i < LOW_VECTORS<Float64>; ++i) fields.low[i] = word[i];
    fields.rest = word[FLOAT64_REST_BYTE];
    fields.exponent = word[FLOAT64_EXPONENT_BYTE];
}

inline void join_chunk(const Fields<Float64>& fields, uint16_t origin, uint8_t* target) {
    __m512i word[8];
    for (int i = 0; i < LOW_VECTORS<Float64>; ++i) word[i] = fields.low[i];
    word[FLOAT64_REST_BYTE] = fields.rest;
    word[FLOAT64_EXPONENT_BYTE] = fields.exponent;
    transpose(word);
    for (int i = 0; i < 8; ++i) {
        word[i] = _mm512_permutexvar_epi8(vector_of(BYTES_TRANSPOSED), word[i]);
        const __m512i exponent = _mm512_srli_epi64(word[i], 56);
        const __m512i field = _mm512_maskz_add_epi64(_mm512_test_epi64_mask(exponent, exponent), exponent,
                                                     _mm512_set1_epi64(origin));
        const __m512i mantissa = select(_mm512_set1_epi64((1LL << 45) - 1), word[i], _mm512_srli_epi64(word[i], 4));
        const __m512i high = select(_mm512_set1_epi64(0x7FFLL << 52), _mm512_slli_epi64(field, 52),
                                    _mm512_slli_epi64(word[i], 15));
        store_vector(target + 64 * i, select(_mm512_set1_epi64((1LL << 52) - 1), mantissa, high));
    }
}

// The types of one byte, whose high bit is the sign.
template <int EXPONENT_BITS, int MANTISSA_BITS>
inline void split_chunk(const uint8_t* source, Fields<Float<uint8_t, EXPONENT_BITS, MANTISSA_BITS>>& fields, uint16_t) {
    const __m512i value = load_vector(source);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(value, 7), _mm512_set1_epi8(1));
    fields.exponent = _mm512_and_si512(_mm512_srli_epi16(value, MANTISSA_BITS),
                                       _mm512_set1_epi8((1 << EXPONENT_BITS) - 1));
    fields.rest = select(_mm512_set1_epi8((2 << MANTISSA_BITS) - 2), _mm512_slli_epi16(value, 1), sign);
}

template <int EXPONENT_BITS, int MANTISSA_BITS>
inline void join_chunk(const Fields<Float<uint8_t, EXPONENT_BITS, MANTISSA_BITS>>& fields, uint16_t, uint8_t* target) {
    const __m512i mantissa = _mm512_srli_epi16(fields.rest, 1);
    const __m512i field = _mm512_slli_epi16(fields.exponent, MANTISSA_BITS);
    const __m512i magnitude = select(_mm512_set1_epi8((1 << MANTISSA_BITS) - 1), mantissa, field);
    store_vector(target, select(_mm512_set1_epi8(127), magnitude, _mm512_slli_epi16(fields.rest, 7)));
}

inline uint64_t plane_of(__m512i bytes, int bit) {
    return _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(char(1 << bit)));
}

// Write the rests of a block's c-th chunk.
template <class D>
inline void write_rest(__m512i rest, int c, uint8_t* planes) {
    if (D::REST_BITS == 8) return store_vector(planes + 64 * c, rest);
    for (int bit = 0; bit < D::REST_BITS; ++bit) store(planes + bit * BIT_PLANE_NBYTES + 8 * c, plane_of(rest, bit));
}

// The bytes that have one bit for each plane.
template <int BITS>
inline __m512i bytes_of_planes(const uint8_t* planes) {
    __m512i bytes = _mm512_setzero_si512();
    for (int bit = 0; bit < BITS; ++bit) {
        const __mmask64 plane = load<uint64_t>(planes + bit * BIT_PLANE_NBYTES);
        bytes = _mm512_mask_add_epi8(bytes, plane, bytes, _mm512_set1_epi8(char(1 << bit)));
    }
    return bytes;
}

template <class D>
inline __m512i read_rest(const uint8_t* planes, int c) {
    return D::REST_BITS == 8 ? load_vector(planes + 64 * c) : bytes_of_planes<D::REST_BITS>(planes + 8 * c);
}

// Write the low planes that are not zero; return which ones these are.
template <class D>
inline uint8_t write_low_planes(const Fields<D> (&fields)[CHUNKS], uint8_t* planes) {
    uint8_t mask = 0;
    for (int plane = 0; plane < D::LOW_BYTES; ++plane) {
        __m512i any = _mm512_setzero_si512();
        for (int c = 0; c < CHUNKS; ++c) {
            store_vector(planes + 64 * c, fields[c].low[plane]);
            any = _mm512_or_si512(any, fields[c].low[plane]);
        }
        const bool present = _mm512_test_epi8_mask(any, any) != 0;
        mask |= present << plane;
        planes += present ? BYTE_PLANE_NBYTES : 0;
    }
    for (int group = 0; group < D::GROUPS; ++group) {
        uint64_t any = 0;
        for (int bit = 0; bit < D::GROUP_BITS; ++bit) {
            for (int c = 0; c < CHUNKS; ++c) {
                const uint64_t plane = plane_of(fields[c].low[LAST_LOW_VECTOR<D>], group * D::GROUP_BITS + bit);
                store(planes + bit * BIT_PLANE_NBYTES + 8 * c, plane);
                any |= plane;
            }
        }
        mask |= (any != 0) << (D::LOW_BYTES + group);
        planes += any ? D::GROUP_BITS * BIT_PLANE_NBYTES : 0;
    }
    return mask;
}

constexpr uint8_t ABSENT_PLANE[BLOCK_COUNT] = {};

// Where a block's low planes stand, or zeros instead of those that were left out.
template <class D>
struct LowPlanes {
    const uint8_t* plane[D::LOW_PLANES ? D::LOW_PLANES : 1];

    LowPlanes(const uint8_t* planes, uint8_t mask) {
        for (int i = 0; i < D::LOW_PLANES; ++i) {
            const bool present = mask >> i & 1;
            plane[i] = present ? planes : ABSENT_PLANE;
            planes += present ? (i < D::LOW_BYTES ? BYTE_PLANE_NBYTES : D::GROUP_BITS * BIT_PLANE_NBYTES) : 0;
        }
    }

    void read(int c, Fields<D>& fields) const {
        for (int i = 0; i < D::LOW_BYTES; ++i) fields.low[i] = load_vector(plane[i] + 64 * c);
        if (!D::GROUPS) return;
        __m512i bits = _mm512_setzero_si512();
        for (int group = 0; group < D::GROUPS; ++group) {
            const __m512i some = bytes_of_planes<D::GROUP_BITS>(plane[D::LOW_BYTES + group] + 8 * c);
            bits = _mm512_or_si512(bits, _mm512_slli_epi16(some, group * D::GROUP_BITS));
        }
        fields.low[LAST_LOW_VECTOR<D>] = bits;
    }
};
