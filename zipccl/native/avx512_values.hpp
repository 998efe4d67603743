// AVX-512: a block's values to exponents, rests and low planes, and back. A part of avx512.cpp.

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

// Write a block's rests, exponents, and the low planes that are not zero; return which planes these are.
inline uint8_t split_values(Bfloat16, const uint8_t* source, uint8_t* static_part, uint8_t* exponent) {
    for (int c = 0; c < CHUNKS; ++c) {
        const __m512i first = load_vector(source + 128 * c);
        const __m512i second = load_vector(source + 128 * c + 64);
        __m512i rest, exponents;
        deinterleave(rotate_words_left(first), rotate_words_left(second), rest, exponents);
        store_vector(static_part + 64 * c, rest);
        store_vector(exponent + 64 * c, exponents);
    }
    return 0;
}

inline void join_values(Bfloat16, Entry, const Chunks& exponent, const uint8_t* static_part, uint8_t* target) {
    for (int c = 0; c < CHUNKS; ++c) {
        const __m512i rest = load_vector(static_part + 64 * c);
        for (int half = 0; half < 2; ++half) {
            const __m512i word = interleave(rest, exponent[c], half);
            store_vector(target + 128 * c + 64 * half, rotate_words_right(word));
        }
    }
}

constexpr int SELECT_BY_C = 0xE4;  // of _mm512_ternarylogic: c ? a : b

inline uint8_t split_values(Float16, const uint8_t* source, uint8_t* static_part, uint8_t* exponent) {
    const __m512i word_mask = _mm512_set1_epi16(0x1FFE);
    Chunks low;
    for (int c = 0; c < CHUNKS; ++c) {
        const __m512i first = load_vector(source + 128 * c);
        const __m512i second = load_vector(source + 128 * c + 64);
        __m512i word[2];
        for (int half = 0; half < 2; ++half) {
            const __m512i value = half ? second : first;
            word[half] = _mm512_ternarylogic_epi64(_mm512_srli_epi16(value, 2), _mm512_srli_epi16(value, 15),
                                                   word_mask, SELECT_BY_C);
        }
        __m512i rest, exponents;
        deinterleave(word[0], word[1], rest, exponents);
        store_vector(static_part + 64 * c, rest);
        store_vector(exponent + 64 * c, exponents);
        low[c] = _mm512_permutex2var_epi8(first, vector_of(EVEN_BYTES), second);
    }
    uint8_t mask = 0;
    uint8_t* plane_end = static_part + CODED_STATIC_NBYTES;
    for (int plane = 0; plane < 3; ++plane) {
        uint64_t any = 0;
        for (int c = 0; c < CHUNKS; ++c) {
            const uint64_t bits = _mm512_test_epi8_mask(low[c], _mm512_set1_epi8(char(1 << plane)));
            store(plane_end + 8 * c, bits);
            any |= bits;
        }
        mask |= (any != 0) << plane;
        plane_end += any ? Float16::LOW_PLANE_NBYTES : 0;
    }
    return mask;
}

constexpr uint8_t ABSENT_PLANE[BLOCK_COUNT] = {};

// Return where a low plane stands and step over it, or where zeros stand if it was left out.
template <class D>
inline const uint8_t* next_plane(const uint8_t*& planes, uint8_t mask, int plane) {
    const bool present = mask >> plane & 1;
    const uint8_t* const found = present ? planes : ABSENT_PLANE;
    planes += present ? D::LOW_PLANE_NBYTES : 0;
    return found;
}

inline void join_values(Float16, Entry entry, const Chunks& exponent, const uint8_t* static_part, uint8_t* target) {
    const uint8_t* planes = static_part + CODED_STATIC_NBYTES;
    const uint8_t* plane[3];
    for (int p = 0; p < 3; ++p) plane[p] = next_plane<Float16>(planes, entry.mask, p);
    const __m512i magnitude_mask = _mm512_set1_epi16(0x7FF8);
    for (int c = 0; c < CHUNKS; ++c) {
        const __m512i rest = load_vector(static_part + 64 * c);
        __m512i low = _mm512_setzero_si512();
        for (int p = 0; p < 3; ++p) {
            const __mmask64 bits = load<uint64_t>(plane[p] + 8 * c);
            low = _mm512_mask_add_epi8(low, bits, low, _mm512_set1_epi8(char(1 << p)));
        }
        for (int half = 0; half < 2; ++half) {
            const __m512i word = interleave(rest, exponent[c], half);
            const __m512i value = _mm512_ternarylogic_epi64(_mm512_slli_epi16(word, 2), _mm512_slli_epi16(word, 15),
                                                            magnitude_mask, SELECT_BY_C);
            const __m512i low_bits = interleave(low, _mm512_setzero_si512(), half);
            store_vector(target + 128 * c + 64 * half, _mm512_or_si512(value, low_bits));
        }
    }
}

inline uint8_t split_values(Float32, const uint8_t* source, uint8_t* static_part, uint8_t* exponent) {
    Chunks low[2];
    for (int c = 0; c < CHUNKS; ++c) {
        __m512i low_words[2];
        __m512i words[2];
        for (int half = 0; half < 2; ++half) {
            const __m512i first = load_vector(source + 256 * c + 128 * half);
            const __m512i second = load_vector(source + 256 * c + 128 * half + 64);
            low_words[half] = _mm512_permutex2var_epi16(first, vector_of(EVEN_WORDS), second);
            words[half] = rotate_words_left(_mm512_permutex2var_epi16(first, vector_of(ODD_WORDS), second));
        }
        __m512i rest, exponents;
        deinterleave(words[0], words[1], rest, exponents);
        deinterleave(low_words[0], low_words[1], low[0][c], low[1][c]);
        store_vector(static_part + 64 * c, rest);
        store_vector(exponent + 64 * c, exponents);
    }
    uint8_t mask = 0;
    uint8_t* plane_end = static_part + CODED_STATIC_NBYTES;
    for (int plane = 0; plane < 2; ++plane) {
        __m512i any = _mm512_setzero_si512();
        for (int c = 0; c < CHUNKS; ++c) {
            store_vector(plane_end + 64 * c, low[plane][c]);
            any = _mm512_or_si512(any, low[plane][c]);
        }
        const bool present = _mm512_test_epi8_mask(any, any) != 0;
        mask |= present << plane;
        plane_end += present ? Float32::LOW_PLANE_NBYTES : 0;
    }
    return mask;
}

inline void join_values(Float32, Entry entry, const Chunks& exponent, const uint8_t* static_part, uint8_t* target) {
    const uint8_t* planes = static_part + CODED_STATIC_NBYTES;
    const uint8_t* const plane_0 = next_plane<Float32>(planes, entry.mask, 0);
    const uint8_t* const plane_1 = next_plane<Float32>(planes, entry.mask, 1);
    for (int c = 0; c < CHUNKS; ++c) {
        const __m512i rest = load_vector(static_part + 64 * c);
        const __m512i low_0 = load_vector(plane_0 + 64 * c);
        const __m512i low_1 = load_vector(plane_1 + 64 * c);
        for (int half = 0; half < 2; ++half) {
            const __m512i high = rotate_words_right(interleave(rest, exponent[c], half));
            const __m512i low = interleave(low_0, low_1, half);
            uint8_t* const out = target + 256 * c + 128 * half;
            store_vector(out, interleave_words(low, high, 0));
            store_vector(out + 64, interleave_words(low, high, 1));
        }
    }
}
