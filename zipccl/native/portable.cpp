// The codec for any little-endian machine: eight values at a time in 64-bit words, and loops for the compiler's SIMD.

#include "codec.hpp"

namespace zipccl {
namespace {

INLINE uint64_t first_bits(uint64_t bits, unsigned count) {
    return count < 64 ? bits & ((uint64_t(1) << count) - 1) : bits;
}

#include "layout.hpp"
#include "rows.hpp"
#include "kernels.hpp"
#include "reduce.hpp"
#include "body.hpp"

constexpr uint64_t EVERY_BYTE = 0x0101010101010101;

// Gather bit 0 of each of eight bytes.
inline uint8_t gather_bits(uint64_t bytes) { return uint8_t((bytes & EVERY_BYTE) * 0x0102040810204080 >> 56); }

// Undo gather_bits.
inline uint64_t spread_bits(uint8_t bits) {
    const uint64_t one_bit_each = bits * EVERY_BYTE & 0x8040201008040201;
    return (one_bit_each + 0x7F * EVERY_BYTE) >> 7 & EVERY_BYTE;
}

// Gather one bit of each of 64 bytes.
inline uint64_t gather_plane(const uint8_t* bytes, int bit) {
    uint64_t plane = 0;
    for (int i = 0; i < 8; ++i) plane |= uint64_t(gather_bits(load<uint64_t>(bytes + 8 * i) >> bit)) << 8 * i;
    return plane;
}

// Undo gather_plane; the other bits are zero.
inline void spread_plane(uint64_t bits, int bit, uint8_t* bytes) {
    for (int i = 0; i < 8; ++i) store(bytes + 8 * i, spread_bits(uint8_t(bits >> 8 * i)) << bit);
}

#include "values.hpp"

struct CodeTables {
    uint8_t code[TABLES][3][256];
};

// Entry o of a table is the code of o = E - base (mod 256) in a level.
constexpr CodeTables make_code_tables() {
    CodeTables tables{};
    for (int table = 0; table < TABLES; ++table) {
        for (int level = 0; level < 3; ++level) {
            for (int o = 0; o < 256; ++o) tables.code[table][level][o] = DEEPER;
            for (int code = 0; code < 3; ++code) {
                tables.code[table][level][OFFSETS[table][level][code] & 255] = uint8_t(code);
            }
        }
    }
    return tables;
}

constexpr CodeTables CODE_TABLES = make_code_tables();

int occurrences(const uint8_t* exponent, uint32_t wanted) {
    int count = 0;
    for (size_t start = 0; start < BLOCK_COUNT; start += 128) {
        uint8_t part = 0;  // a byte, because the compiler then counts sixteen values in one instruction
        for (size_t i = 0; i < 128; ++i) part += exponent[start + i] == uint8_t(wanted);
        count += part;
    }
    return count;
}

// As the first guess of choose_base in reference.py.
uint8_t guess_base(const uint8_t* exponent) {
    uint16_t total = 0;
    uint8_t greatest = 0;
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        total += exponent[i];
        greatest = exponent[i] > greatest ? exponent[i] : greatest;
    }
    const uint32_t normal = BLOCK_COUNT - occurrences(exponent, 0);
    return uint8_t(normal ? (2u * total + (2u * greatest + 3) * normal) / (4 * normal) : 0);
}

// As its refinement.
uint8_t refine_base(const uint8_t* exponent, uint8_t guess) {
    if (occurrences(exponent, guess - 3u) > occurrences(exponent, guess)) return uint8_t(guess - 1);
    if (occurrences(exponent, guess + 1u) > occurrences(exponent, guess - 2u)) return uint8_t(guess + 1);
    return guess;
}

// As in reference.py.
int choose_table(const uint8_t* exponent, uint32_t base) {
    const int below_symmetric = occurrences(exponent, base - 4) + 4 * occurrences(exponent, base - 7);
    if (5 * occurrences(exponent, base + 2) > below_symmetric) return SYMMETRIC;
    return occurrences(exponent, base - 5) > occurrences(exponent, base + 1) ? FALLING : SKEWED;
}

// Write a level's codes in rows; return their end. Codes up to a multiple of 64 are read and do not matter.
uint8_t* write_level(const uint8_t* codes, int count, uint8_t* out) {
    for (int start = 0; start < count; start += 64) {
        const int some = count_from(start, count);
        write_rows({first_bits(gather_plane(codes + start, 0), some), first_bits(gather_plane(codes + start, 1), some)},
                   some, out + rows_nbytes(start));
    }
    return out + rows_nbytes(count);
}

// Undo write_level, writing codes up to a multiple of 64; count the codes that are DEEPER.
int read_level_codes(const uint8_t* rows, int count, uint8_t* codes) {
    int deeper = 0;
    for (int start = 0; start < count; start += 64) {
        const Codes found = read_rows(rows + rows_nbytes(start), count_from(start, count));
        deeper += __builtin_popcountll(found.deeper());
        for (int i = 0; i < 8; ++i) {
            const uint64_t first_bits = spread_bits(uint8_t(found.first >> 8 * i));
            const uint64_t second_bits = spread_bits(uint8_t(found.second >> 8 * i));
            store(codes + start + 8 * i, first_bits | second_bits << 1);
        }
    }
    return deeper;
}

// Which of 64 values, from a multiple of 64 on, reach level 1.
inline uint64_t deeper_in_level_0(const uint8_t* planes, size_t start) {
    return load<uint64_t>(planes + start / 8) & load<uint64_t>(planes + BIT_PLANE_NBYTES + start / 8);
}

// Set a level's exponents from its codes; those of DEEPER codes come from the next level.
void read_level(const uint8_t* codes, size_t count, uint8_t base, const int* offsets, const uint8_t* next,
                uint8_t* exponent) {
    uint8_t of_code[4] = {uint8_t(base + offsets[0]), uint8_t(base + offsets[1]), uint8_t(base + offsets[2]), 0};
    for (size_t i = 0; i < count; ++i) {
        of_code[DEEPER] = *next;
        exponent[i] = of_code[codes[i]];
        next += codes[i] == DEEPER;
    }
}

struct Kernels {
    template <class D>
    static void split(const uint8_t* source, uint8_t* static_part, uint8_t* exponent, Split& split) {
        split_values<D>(source, static_part, exponent, split);
    }

    static void guess_bases(const uint8_t (&exponent)[GROUP_BLOCKS][BLOCK_COUNT], uint8_t (&base)[GROUP_BLOCKS]) {
        for (size_t i = 0; i < GROUP_BLOCKS; ++i) base[i] = guess_base(exponent[i]);
    }

    static void refine_bases(const uint8_t (&exponent)[GROUP_BLOCKS][BLOCK_COUNT], uint8_t (&base)[GROUP_BLOCKS]) {
        for (size_t i = 0; i < GROUP_BLOCKS; ++i) base[i] = refine_base(exponent[i], base[i]);
    }

    struct Encoding {
        uint8_t exponent[BLOCK_COUNT];  // of the values that reach level 1
        int count;
        uint8_t base;
        int table;
    };

    static void encode_level_0(const uint8_t* exponent, uint8_t base, uint8_t* planes, Encoding& encoding) {
        encoding.base = base;
        encoding.table = choose_table(exponent, base);
        uint8_t codes[BLOCK_COUNT];
        for (size_t i = 0; i < BLOCK_COUNT; ++i) {
            const uint8_t below = uint8_t(base - exponent[i]);
            codes[i] = below < DEEPER ? below : DEEPER;
        }
        int count = 0;
        for (size_t start = 0; start < BLOCK_COUNT; start += 64) {
            const uint64_t first = gather_plane(codes + start, 0);
            const uint64_t second = gather_plane(codes + start, 1);
            store(planes + start / 8, first);
            store(planes + BIT_PLANE_NBYTES + start / 8, second);
            for (uint64_t left = first & second; left; left &= left - 1) {
                encoding.exponent[count++] = exponent[start + __builtin_ctzll(left)];
            }
        }
        encoding.count = count;
    }

    static void choose_tables(Encoding (&)[GROUP_BLOCKS]) {}  // encode_level_0 has done it

    static void code_deeper_levels(Encoding&) {}

    static uint8_t* write_deeper_levels(const Encoding& encoding, uint8_t* out) {
        uint8_t codes[BLOCK_COUNT];
        uint8_t deeper[BLOCK_COUNT];
        const uint8_t* values = encoding.exponent;
        int count = encoding.count;
        for (int level = 1; level < 3; ++level) {
            const uint8_t* const code_of = CODE_TABLES.code[encoding.table][level];
            int kept = 0;
            for (int i = 0; i < count; ++i) {
                const uint8_t value = values[i];
                codes[i] = code_of[uint8_t(value - encoding.base)];
                deeper[kept] = value;
                kept += codes[i] == DEEPER;
            }
            out = write_level(codes, count, out);
            count = kept;
            values = deeper;
        }
        std::memcpy(out, deeper, count);
        return out + count;
    }

    struct Decoding {
        uint8_t exponent[BLOCK_COUNT];  // of the values that reach level 1
        uint8_t base;
    };

    static const uint8_t* read_codes(const uint8_t* planes, uint8_t base, int table, const uint8_t* deeper_levels,
                                     Decoding& decoding) {
        int count_1 = 0;
        for (size_t start = 0; start < BLOCK_COUNT; start += 64) {
            count_1 += __builtin_popcountll(deeper_in_level_0(planes, start));
        }
        uint8_t codes_1[BLOCK_COUNT];
        uint8_t codes_2[BLOCK_COUNT];
        const uint8_t* const rows_2 = deeper_levels + rows_nbytes(count_1);
        const int count_2 = read_level_codes(deeper_levels, count_1, codes_1);
        const uint8_t* const escapes = rows_2 + rows_nbytes(count_2);
        const int escape_count = read_level_codes(rows_2, count_2, codes_2);

        uint8_t exponent_2[BLOCK_COUNT + 1];  // one more, because read_level looks ahead
        exponent_2[count_2] = 0;
        read_level(codes_2, count_2, base, OFFSETS[table][2], escapes, exponent_2);
        read_level(codes_1, count_1, base, OFFSETS[table][1], exponent_2, decoding.exponent);
        decoding.base = base;
        return escapes + escape_count;
    }

    static void decode_deeper_levels(Decoding&) {}

    static void decode_level_0(const uint8_t* planes, const Decoding& decoding, uint8_t (&exponent)[BLOCK_COUNT]) {
        for (size_t i = 0; i < BLOCK_COUNT; i += 8) {
            store(exponent + i, spread_bits(planes[i / 8]) + 2 * spread_bits(planes[BIT_PLANE_NBYTES + i / 8]));
        }
        for (size_t i = 0; i < BLOCK_COUNT; ++i) exponent[i] = uint8_t(decoding.base - exponent[i]);
        const uint8_t* next = decoding.exponent;
        for (size_t start = 0; start < BLOCK_COUNT; start += 64) {
            for (uint64_t left = deeper_in_level_0(planes, start); left; left &= left - 1) {
                exponent[start + __builtin_ctzll(left)] = *next++;
            }
        }
    }

    template <class D>
    static void join(const Parts& parts, const Decoding& decoding, uint8_t* target) {
        uint8_t exponent[BLOCK_COUNT];
        decode_level_0(parts.planes + D::REST_NBYTES, decoding, exponent);
        join_parts<D>(parts, exponent, target);
    }

    template <class D>
    static void join_sparse(const Parts& parts, const Decoding& decoding, const Bits& present, uint8_t* target) {
        uint8_t exponent[BLOCK_COUNT];
        decode_level_0(parts.planes + D::REST_NBYTES, decoding, exponent);
        for (size_t i = 0; i < BLOCK_COUNT; i += 8) {
            const uint64_t bytes = spread_bits(uint8_t(present.word[i / 64] >> i % 64)) * 255;
            store(exponent + i, load<uint64_t>(exponent + i) & bytes);
        }
        join_parts<D>(parts, exponent, target);
    }

    static void compact_bytes(const Bits& present, const uint8_t* bytes, uint8_t* out) {
        for (int w = 0; w < WORDS; ++w) {
            for (uint64_t left = present.word[w]; left; left &= left - 1) {
                *out++ = bytes[64 * w + __builtin_ctzll(left)];
            }
        }
    }

    static void expand_bytes(const Bits& present, const uint8_t* bytes, uint8_t* out) {
        std::memset(out, 0, BLOCK_COUNT);
        for (int w = 0; w < WORDS; ++w) {
            for (uint64_t left = present.word[w]; left; left &= left - 1) {
                out[64 * w + __builtin_ctzll(left)] = *bytes++;
            }
        }
    }

    static void fill_end(uint8_t* bytes, int count, uint8_t value) {
        std::memset(bytes + count, value, BLOCK_COUNT - count);
    }

    static uint64_t extract(uint64_t bits, uint64_t mask) {
        uint64_t result = 0;
        for (int i = 0; mask; ++i, mask &= mask - 1) result |= (bits >> __builtin_ctzll(mask) & 1) << i;
        return result;
    }

    static uint64_t deposit(uint64_t bits, uint64_t mask) {
        uint64_t result = 0;
        for (; mask; bits >>= 1, mask &= mask - 1) result |= (bits & 1) << __builtin_ctzll(mask);
        return result;
    }
};

bool supported() { return true; }

}  // namespace

const Implementation portable = {
    "portable", supported, encode_body_of<Kernels>, decode_body_of<Kernels>, decode_reduce_of<Kernels>,
    pack_encode_of<Kernels>, widen, accumulate, pack,
};

}  // namespace zipccl
