// The codec for any little-endian machine: eight values at a time in 64-bit words, and loops for the compiler's SIMD.

#include "codec.hpp"

namespace zipccl {
namespace {

#include "body.hpp"
#include "reduce.hpp"

// A word holds a value's exponent E in its high byte and its rest R in its low byte.
inline uint16_t word_of(Bfloat16, uint16_t value) { return uint16_t(value << 1 | value >> 15); }
inline uint16_t word_of(Float16, uint16_t value) { return uint16_t((value >> 2 & 0x1FFE) | value >> 15); }
inline uint16_t word_of(Float32, uint32_t value) { return uint16_t(value >> 16 << 1 | value >> 31); }

inline uint16_t value_of(Bfloat16, uint16_t word) { return uint16_t(word >> 1 | word << 15); }
inline uint16_t value_of(Float16, uint16_t word) { return uint16_t((word << 2 & 0x7FF8) | word << 15); }
inline uint32_t value_of(Float32, uint16_t word) { return uint32_t(word >> 1) << 16 | uint32_t(word) << 31; }

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

struct CodeTables {
    uint8_t code[2][3][256];
};

// Entry o of a table is the code of o = E - base (mod 256) in a level.
constexpr CodeTables make_code_tables() {
    CodeTables tables{};
    for (int symmetric = 0; symmetric < 2; ++symmetric) {
        for (int level = 0; level < 3; ++level) {
            for (int o = 0; o < 256; ++o) tables.code[symmetric][level][o] = DEEPER;
            for (int code = 0; code < 3; ++code) {
                tables.code[symmetric][level][OFFSETS[symmetric][level][code] & 255] = uint8_t(code);
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

// As choose_base in reference.py.
uint8_t choose_base(const uint8_t* exponent) {
    uint16_t total = 0;
    uint8_t greatest = 0;
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        total += exponent[i];
        greatest = exponent[i] > greatest ? exponent[i] : greatest;
    }
    const uint32_t normal = BLOCK_COUNT - occurrences(exponent, 0);
    const uint32_t guess = normal ? (2u * total + (2u * greatest + 3) * normal) / (4 * normal) : 0;
    if (occurrences(exponent, guess - 3) > occurrences(exponent, guess)) return uint8_t(guess - 1);
    if (occurrences(exponent, guess + 1) > occurrences(exponent, guess - 2)) return uint8_t(guess + 1);
    return uint8_t(guess);
}

// Write a level's codes in rows; return their end. Codes up to a multiple of 32 are read and do not matter.
uint8_t* write_rows(const uint8_t* codes, size_t count, uint8_t* out) {
    for (size_t start = 0; start < count; start += 32) {
        const size_t row = count - start < 32 ? count - start : 32;
        uint64_t bits[2] = {};
        for (int bit = 0; bit < 2; ++bit) {
            for (int i = 0; i < 4; ++i) {
                const uint64_t bytes = load<uint64_t>(codes + start + 8 * i);
                bits[bit] |= uint64_t(gather_bits(bytes >> bit)) << 8 * i;
            }
            bits[bit] &= (uint64_t(1) << row) - 1;
        }
        store(out + start / 4, bits[0] | bits[1] << row);
    }
    return out + (count + 3) / 4;
}

// Undo write_rows, writing codes up to a multiple of 32; count the codes that are DEEPER.
size_t read_rows(const uint8_t* rows, size_t count, uint8_t* codes) {
    size_t deeper = 0;
    for (size_t start = 0; start < count; start += 32) {
        const size_t row = count - start < 32 ? count - start : 32;
        const uint64_t bits = load<uint64_t>(rows + start / 4);
        const uint64_t in_row = (uint64_t(1) << row) - 1;
        const uint64_t first = bits & in_row;
        const uint64_t second = bits >> row & in_row;
        deeper += __builtin_popcountll(first & second);
        for (int i = 0; i < 4; ++i) {
            const uint64_t first_bits = spread_bits(uint8_t(first >> 8 * i));
            const uint64_t second_bits = spread_bits(uint8_t(second >> 8 * i));
            store(codes + start + 8 * i, first_bits | second_bits << 1);
        }
    }
    return deeper;
}

// Which of 64 values, from a multiple of 64 on, reach level 1.
inline uint64_t deeper_in_level_0(const uint8_t* static_part, size_t start) {
    const uint8_t* const planes = static_part + REST_NBYTES + start / 8;
    return load<uint64_t>(planes) & load<uint64_t>(planes + LEVEL_0_PLANE_NBYTES);
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

inline uint8_t write_low_planes(Bfloat16, const uint16_t*, uint8_t*) { return 0; }

inline uint8_t write_low_planes(Float16, const uint16_t* values, uint8_t* planes) {
    uint8_t low[BLOCK_COUNT];
    for (size_t i = 0; i < BLOCK_COUNT; ++i) low[i] = uint8_t(values[i]);
    uint8_t mask = 0;
    for (int plane = 0; plane < 3; ++plane) {
        uint64_t any = 0;
        for (size_t i = 0; i < BLOCK_COUNT; i += 64) {
            const uint64_t bits = gather_plane(low + i, plane);
            store(planes + i / 8, bits);
            any |= bits;
        }
        mask |= (any != 0) << plane;
        planes += any ? LEVEL_0_PLANE_NBYTES : 0;
    }
    return mask;
}

inline uint8_t write_low_planes(Float32, const uint32_t* values, uint8_t* planes) {
    uint8_t mask = 0;
    for (int plane = 0; plane < 2; ++plane) {
        uint8_t low[BLOCK_COUNT];
        uint8_t any = 0;
        for (size_t i = 0; i < BLOCK_COUNT; ++i) {
            low[i] = uint8_t(values[i] >> 8 * plane);
            any |= low[i];
        }
        if (any) {
            std::memcpy(planes, low, sizeof low);
            planes += sizeof low;
            mask |= 1 << plane;
        }
    }
    return mask;
}

inline void add_low_planes(Bfloat16, const uint8_t*, uint8_t, uint16_t*) {}

inline void add_low_planes(Float16, const uint8_t* planes, uint8_t mask, uint16_t* values) {
    if (!mask) return;
    uint8_t low[BLOCK_COUNT] = {};
    for (int plane = 0; plane < 3; ++plane) {
        if (!(mask >> plane & 1)) continue;
        for (size_t i = 0; i < BLOCK_COUNT; i += 8) {
            store(low + i, load<uint64_t>(low + i) | spread_bits(planes[i / 8]) << plane);
        }
        planes += LEVEL_0_PLANE_NBYTES;
    }
    for (size_t i = 0; i < BLOCK_COUNT; ++i) values[i] |= low[i];
}

inline void add_low_planes(Float32, const uint8_t* planes, uint8_t mask, uint32_t* values) {
    for (int plane = 0; plane < 2; ++plane) {
        if (!(mask >> plane & 1)) continue;
        for (size_t i = 0; i < BLOCK_COUNT; ++i) values[i] |= uint32_t(planes[i]) << 8 * plane;
        planes += BLOCK_COUNT;
    }
}

struct Kernels {
    template <class D>
    static uint8_t split(const uint8_t* source, uint8_t* static_part, uint8_t* exponent) {
        typename D::Value values[BLOCK_COUNT];
        uint8_t exponents[BLOCK_COUNT];  // local arrays, so that the compiler knows that they do not overlap
        uint8_t rests[BLOCK_COUNT];
        std::memcpy(values, source, sizeof values);
        for (size_t i = 0; i < BLOCK_COUNT; ++i) {
            const uint16_t word = word_of(D{}, values[i]);
            exponents[i] = uint8_t(word >> 8);
            rests[i] = uint8_t(word);
        }
        std::memcpy(exponent, exponents, sizeof exponents);
        std::memcpy(static_part, rests, sizeof rests);
        return write_low_planes(D{}, values, static_part + CODED_STATIC_NBYTES);
    }

    static void choose_bases(const uint8_t (&exponent)[GROUP_BLOCKS][BLOCK_COUNT], uint8_t (&base)[GROUP_BLOCKS],
                             size_t blocks) {
        for (size_t i = 0; i < blocks; ++i) base[i] = choose_base(exponent[i]);
    }

    struct Encoding {
        uint8_t exponent[BLOCK_COUNT];  // of the values that reach level 1
        size_t count;
        uint8_t base;
        bool symmetric;
    };

    static void encode_level_0(const uint8_t* exponent, uint8_t base, uint8_t* static_part, Encoding& encoding) {
        encoding.base = base;
        encoding.symmetric = occurrences(exponent, base + 2u) > occurrences(exponent, base - 4u);
        uint8_t codes[BLOCK_COUNT];
        for (size_t i = 0; i < BLOCK_COUNT; ++i) {
            const uint8_t below = uint8_t(base - exponent[i]);
            codes[i] = below < DEEPER ? below : DEEPER;
        }
        size_t count = 0;
        for (size_t start = 0; start < BLOCK_COUNT; start += 64) {
            const uint64_t first = gather_plane(codes + start, 0);
            const uint64_t second = gather_plane(codes + start, 1);
            store(static_part + REST_NBYTES + start / 8, first);
            store(static_part + REST_NBYTES + LEVEL_0_PLANE_NBYTES + start / 8, second);
            for (uint64_t left = first & second; left; left &= left - 1) {
                encoding.exponent[count++] = exponent[start + __builtin_ctzll(left)];
            }
        }
        encoding.count = count;
    }

    static void code_deeper_levels(Encoding&) {}

    static size_t write_deeper_levels(const Encoding& encoding, uint8_t* variable_part) {
        uint8_t codes[BLOCK_COUNT];
        uint8_t deeper[BLOCK_COUNT];
        const uint8_t* values = encoding.exponent;
        size_t count = encoding.count;
        uint8_t* end = variable_part;
        for (int level = 1; level < 3; ++level) {
            const uint8_t* const code_of = CODE_TABLES.code[encoding.symmetric][level];
            size_t kept = 0;
            for (size_t i = 0; i < count; ++i) {
                const uint8_t value = values[i];
                codes[i] = code_of[uint8_t(value - encoding.base)];
                deeper[kept] = value;
                kept += codes[i] == DEEPER;
            }
            end = write_rows(codes, count, end);
            count = kept;
            values = deeper;
        }
        std::memcpy(end, deeper, count);
        end += count;
        *end = 0;  // counts if the size is odd
        const size_t nbytes = end - variable_part;
        return nbytes + nbytes % 2;
    }

    struct Decoding {
        uint8_t exponent[BLOCK_COUNT];  // of the values that reach level 1
    };

    static bool read_codes(Entry entry, const uint8_t* static_part, const uint8_t* variable_part,
                           size_t variable_nbytes, Decoding& decoding) {
        size_t count_1 = 0;
        for (size_t start = 0; start < BLOCK_COUNT; start += 64) {
            count_1 += __builtin_popcountll(deeper_in_level_0(static_part, start));
        }
        uint8_t codes_1[BLOCK_COUNT];
        uint8_t codes_2[BLOCK_COUNT];
        const uint8_t* const rows_2 = variable_part + (count_1 + 3) / 4;
        const size_t count_2 = read_rows(variable_part, count_1, codes_1);
        const uint8_t* const escapes = rows_2 + (count_2 + 3) / 4;
        const size_t escape_count = read_rows(rows_2, count_2, codes_2);
        const size_t used = escapes + escape_count - variable_part;
        if (used + used % 2 != variable_nbytes) return false;

        const bool symmetric = entry.code >= CODE_SYMMETRIC;
        uint8_t exponent_2[BLOCK_COUNT + 1];  // one more, because read_level looks ahead
        exponent_2[count_2] = 0;
        read_level(codes_2, count_2, entry.base, OFFSETS[symmetric][2], escapes, exponent_2);
        read_level(codes_1, count_1, entry.base, OFFSETS[symmetric][1], exponent_2, decoding.exponent);
        return true;
    }

    static void decode_deeper_levels(Decoding&) {}

    template <class D>
    static void join(Entry entry, const uint8_t* static_part, const Decoding& decoding, uint8_t* target) {
        const uint8_t* const first_plane = static_part + REST_NBYTES;
        const uint8_t* const second_plane = first_plane + LEVEL_0_PLANE_NBYTES;
        uint8_t exponent[BLOCK_COUNT];
        for (size_t i = 0; i < BLOCK_COUNT; i += 8) {
            store(exponent + i, spread_bits(first_plane[i / 8]) + 2 * spread_bits(second_plane[i / 8]));
        }
        for (size_t i = 0; i < BLOCK_COUNT; ++i) exponent[i] = uint8_t(entry.base - exponent[i]);
        const uint8_t* next = decoding.exponent;
        for (size_t start = 0; start < BLOCK_COUNT; start += 64) {
            for (uint64_t left = deeper_in_level_0(static_part, start); left; left &= left - 1) {
                exponent[start + __builtin_ctzll(left)] = *next++;
            }
        }
        typename D::Value values[BLOCK_COUNT];
        for (size_t i = 0; i < BLOCK_COUNT; ++i) {
            values[i] = value_of(D{}, uint16_t(exponent[i] << 8 | static_part[i]));
        }
        add_low_planes(D{}, static_part + CODED_STATIC_NBYTES, entry.mask, values);
        std::memcpy(target, values, sizeof values);
    }
};

bool supported() { return true; }

}  // namespace

const Implementation portable = {
    "portable", supported, encode_body_of<Kernels>, decode_body_of<Kernels>, widen, accumulate, pack,
};

}  // namespace zipccl
