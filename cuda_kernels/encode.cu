// Encode arrays into bodies: a thread block for each tile of 64 blocks, and a warp for a block at a time.
//
// encode_tiles reads the values once, eight consecutive ones a lane. It finds every block's directory entry and keeps
// its codes in shared memory. When the sizes of a tile are known, a look-back over the earlier tiles tells where its
// parts stand, as in Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (NVR-2016-002):
// the bytes do not depend on the order in which thread blocks run. Static parts then go to their final place. Variable
// parts go to a scratch region, because they stand behind all static parts, whose total is not known before the end.
// finish_bodies moves them, and copies the values if the body would not be smaller.

#include "parts.cuh"
#include "reduce.cuh"

// Where value i of a lane stands in what look_up returns, a byte each. With exponents packed so that words of four of
// them can be joined to a word of nibbles in one step, this is what comes out.
__device__ constexpr u32 byte_of_value(u32 i) { return (i & 4) | (i & 1) << 1 | (i >> 1 & 1); }

struct EncodePart {
    u8* values;  // only encode_packed_tiles writes to them
    u64 count;
    u8* body;
    u64 first_work;
    u8* variable;           // scratch for the variable region, aligned as the body is to 16 bytes
    const u8* accumulator;  // of encode_packed_tiles
};

// What the thread blocks of other tiles may know of a tile.
struct TileState {
    u64 static_end;      // of all blocks of the part up to the tile's last
    u64 variable_end;
    u32 static_nbytes;   // of the tile's blocks
    u32 variable_nbytes;
    u32 known;
    u32 unused;
};
enum Known : u32 { NOTHING, OWN_SIZES, ENDS };

struct TileOffsets {
    u64 static_start;
    u64 variable_start;
};

// Find where a tile's parts start, and tell the others; one warp.
__device__ __forceinline__ TileOffsets look_back(TileState* states, u64 first_work, u64 work, u32 static_nbytes,
                                                 u32 variable_nbytes) {
    TileState& own = states[work];
    if (lane_index() == 0) {
        own.static_nbytes = static_nbytes;
        own.variable_nbytes = variable_nbytes;
        store_release(&own.known, OWN_SIZES);
    }
    TileOffsets start = {0, 0};
    for (u64 end = work; end > first_work;) {
        // The nearest tile is lane 0's. Tiles of an earlier part count as ends at zero.
        const bool exists = end - first_work > lane_index();
        const TileState* const state = states + (exists ? end - 1 - lane_index() : first_work);
        u32 known;
        do {
            known = exists ? load_acquire(&state->known) : u32(ENDS);
        } while (__any_sync(FULL_WARP, known == NOTHING));
        const u32 with_ends = __ballot_sync(FULL_WARP, known == ENDS);
        const u32 last_lane = with_ends ? __ffs(with_ends) - 1 : LANES - 1;
        u64 static_part = 0;
        u64 variable_part = 0;
        if (exists && lane_index() <= last_lane) {
            const volatile TileState* const seen = state;
            static_part = known == ENDS ? seen->static_end : seen->static_nbytes;
            variable_part = known == ENDS ? seen->variable_end : seen->variable_nbytes;
        }
        start.static_start += warp_sum(static_part);
        start.variable_start += warp_sum(variable_part);
        if (with_ends) break;
        end -= LANES;
    }
    if (lane_index() == 0) {
        own.static_end = start.static_start + static_nbytes;
        own.variable_end = start.variable_start + variable_nbytes;
        store_release(&own.known, ENDS);
    }
    return start;
}

// Write the first nbytes of a word, which are not more than eight, with one lane each.
__device__ __forceinline__ void write_word(u8* out, u64 word, u32 nbytes) {
    if (lane_index() < nbytes) out[lane_index()] = u8(word >> (8 * lane_index()));
}

// Bytes in global memory, with the functions of SharedItems.
struct GlobalBytes {
    u8* address;

    __device__ __forceinline__ void skip(u32 count) { address += count; }
    __device__ __forceinline__ void store(u32 value, u32 i = 0) const { address[i] = u8(value); }
};

// Writes rows of codes: the first bits of all codes of a row, then the second bits. A lane writes eight bits.
struct RowWriter {
    u32 first_bit;
    u32 first_count;  // least number of codes that reach the lane

    // The lane writes that byte.
    __device__ __forceinline__ explicit RowWriter(u32 byte) : first_bit(8 * byte), first_count(4 * byte) {}

    // Write a row of count codes, or of 32 if that is more; the lane's byte goes to lane_out[offset].
    template <class Out>
    __device__ __forceinline__ void write(Out lane_out, u32 offset, u32 first, u32 second, u32 count) const {
        count = smaller(count, LANES);
        if (count <= first_count) return;
        const u32 right = shift_right(first, first_bit) | shift_right(second, first_bit - count);
        lane_out.store(right | shift_left(second, count - first_bit), offset);
    }
};

// What is known of a block before its parts are written.
struct BlockPlan {
    u32 entry;            // code, base, mask, and the base of coded and sparse blocks, a byte each
    u32 more;             // origin and, of a sparse block, how many values are present, 16 bits each
    u32 static_offset;    // within the tile's parts
    u32 variable_offset;

    // Set what is known before the places are.
    __device__ __forceinline__ void set(Entry directory_entry, u32 base, u32 origin, u32 present) {
        entry = directory_entry.code | directory_entry.base << 8 | directory_entry.mask << 16 | base << 24;
        more = origin | present << 16;
    }
    __device__ __forceinline__ Entry directory_entry() const {
        return {entry & 255, entry >> 8 & 255, entry >> 16 & 255};
    }
    __device__ __forceinline__ u32 base() const { return entry >> 24; }
    __device__ __forceinline__ u32 origin() const { return more & 0xFFFF; }
    __device__ __forceinline__ u32 present() const { return more >> 16; }
};

// What level 1 and level 2 make of a value; see FloatEncoder::level_byte.
struct TableBytes {
    alignas(16) u32 level_1[2];
    u32 level_2[2];
    u32 level_2_far;
};

// The values of a sparse block that reach a level, one behind the other.
struct Reached {
    u8 level_1[BLOCK_COUNT];   // exponents
    u16 level_2[BLOCK_COUNT];  // exponents, and the codes of both levels above
};

constexpr u32 FINISH_THREADS = 64;

// encode_packed_tiles needs more registers than fit RESIDENT times.
constexpr u32 PACKED_RESIDENT = smaller(RESIDENT, 3);

constexpr u32 HEAD_NBYTES = D::IS_FLOAT ? D::CODED_STATIC_NBYTES : 16;
constexpr u32 SLOT_NBYTES = D::IS_FLOAT ? 128 : 16;

struct EncodeShared {
    alignas(16) u8 head[TILE_BLOCKS][HEAD_NBYTES];  // rests and level 0 of coded blocks; see write_head_of_raw
    alignas(16) u8 slot[TILE_BLOCKS][SLOT_NBYTES];  // variable parts of coded blocks
    BlockPlan plan[TILE_BLOCKS];
    u32 chosen[256];  // for each set of eight bytes, which ones are in it; see choose_bytes
    TableBytes tables[TABLES];
    Reached reached[WARPS];
    u8 position[WARPS][BLOCK_COUNT];  // of a sparse block's values
    TileOffsets start;
    u32 static_nbytes;  // of the tile
    bool all_coded;
    u64 work;
    u32 ticket;
};

// The selectors of two PRMT, one above the other, that put the bytes of a set behind each other, and behind them one that is
// not in it. Bit i of the set is for value i of a lane, of which BYTE_OF_VALUE tells where it stands.
__device__ __forceinline__ u32 choose_bytes(u32 set) {
    u32 chosen = 0;
#pragma unroll
    for (u32 value = 0; value < LANE_COUNT; ++value) {
        if (!(set >> value & 1)) chosen = byte_of_value(value) * 0x11111111;
    }
#pragma unroll
    for (u32 value = LANE_COUNT; value-- > 0;) {
        if (set >> value & 1) chosen = chosen << 4 | byte_of_value(value);
    }
    return chosen;
}

// Make the plan of a block if all of its values are equal; return whether they are.
__device__ __forceinline__ bool plan_equal(const LaneValues& values, BlockPlan& plan) {
    const Word first = __shfl_sync(FULL_WARP, values.value(0), 0);
    bool equal = true;
#pragma unroll
    for (u32 i = 0; i < LANE_COUNT; ++i) equal &= values.value(i) == first;
    if (!__all_sync(FULL_WARP, equal)) return false;
    if (lane_index() == 0) plan.set({first ? CODE_CONSTANT : CODE_ZERO, 0, 0}, 0, 0, 0);
    return true;
}

// Encodes the blocks of a warp, one after the other.
template <class F>
struct FloatEncoder {
    // What a value that reaches level 1 can be: an index for o = +2, +1, -3, -4, -5, -6, -7 and all others. Functions
    // of it are given as eight bytes.
    static constexpr int INDEXED[7] = {2, 1, -3, -4, -5, -6, -7};
    struct Bytes8 {
        u32 low;
        u32 high;

        // Four times the byte of each selector's lowest nibble; see ``index_of``.
        __device__ __forceinline__ u32 of(u32 index) const { return permute(low, high, index); }
    };

    // The values of a block that reach a level, one behind the other: exponents; with the codes of both levels above.
    const SharedItems<u8> reached_1;
    const SharedItems<u16> reached_2;
    const SharedItems<u32> chosen;
    const TableBytes* const tables;

    __device__ __forceinline__ FloatEncoder(const Reached& reached, const u32* chosen, const TableBytes* tables)
        : reached_1(reached.level_1), reached_2(reached.level_2), chosen(chosen), tables(tables) {}

    // The exponents and the rests of a lane's values, a byte each.
    struct Exponents {
        u32 packed[2];  // values 0, 1, 4 and 5; 2, 3, 6 and 7
        u32 rest[2];    // values 0 to 3; 4 to 7
    };

    // Return the index in the lowest nibble, and indices of all others above it.
    __device__ static __forceinline__ u32 index_of(u32 exponent, u32 base) {
        const u32 below = (base + 2 - exponent) & 255;  // 0, 1, or 5 and more
        const u32 index = below + (below >= 5 ? 0x7770 - 3 : 0x7770);
        return index < 0x7777 ? index : 0x7777;
    }

    __device__ static constexpr u64 bytes_of_codes(u32 table) {
        constexpr int offsets[TABLES][2][3] = {
            {{1, -3, -4}, {-5, -6, -7}}, {{-3, -4, -5}, {1, -6, -7}}, {{1, 2, -3}, {-4, -5, -6}}};
        u64 bytes = 0;
        for (int index = 0; index < 8; ++index) {
            u64 codes[2] = {DEEPER, DEEPER};
            for (int level = 0; level < 2; ++level) {
                for (int code = 0; code < 3; ++code) {
                    if (index < 7 && offsets[table][level][code] == INDEXED[index]) codes[level] = code;
                }
            }
            bytes |= (codes[0] | codes[1] << 2) << (8 * index);
        }
        return bytes;
    }

    // What level 1 and level 2 make of o: the inverted code in both nibbles, that of 0 of what does not reach the level.
    __device__ static constexpr u32 level_byte(u32 table, u32 level, int o) {
        constexpr int offsets[TABLES][3][3] = {{{0, -1, -2}, {1, -3, -4}, {-5, -6, -7}},
                                               {{0, -1, -2}, {-3, -4, -5}, {1, -6, -7}},
                                               {{0, -1, -2}, {1, 2, -3}, {-4, -5, -6}}};
        for (u32 higher = 0; higher <= level; ++higher) {
            for (u32 code = 0; code < 3; ++code) {
                if (offsets[table][higher][code] == o) return (higher == level ? DEEPER - code : DEEPER) * 0x11;
            }
        }
        return 0;
    }

    __device__ static constexpr TableBytes table_bytes(u32 table) {
        TableBytes bytes = {};
        for (int i = 0; i < 4; ++i) {
            bytes.level_1[0] |= level_byte(table, 1, 2 - i) << (8 * i);
            bytes.level_1[1] |= level_byte(table, 1, -2 - i) << (8 * i);
            bytes.level_2[0] |= level_byte(table, 2, 2 - i) << (8 * i);
            bytes.level_2[1] |= level_byte(table, 2, -2 - i) << (8 * i);
            bytes.level_2_far |= level_byte(table, 2, -6 - i) << (8 * i);
        }
        return bytes;
    }

    // The codes of level 1, and of level 2 in the two bits above.
    __device__ static __forceinline__ Bytes8 codes_of(u32 table) {
        constexpr u64 skewed = bytes_of_codes(SKEWED);
        constexpr u64 falling = bytes_of_codes(FALLING);
        constexpr u64 symmetric = bytes_of_codes(SYMMETRIC);
        const u32 low = table == SKEWED ? u32(skewed) : table == FALLING ? u32(falling) : u32(symmetric);
        const u32 high = table == SKEWED ? u32(skewed >> 32) : table == FALLING ? u32(falling >> 32) : u32(symmetric >> 32);
        return {low, high};
    }

    // Split a lane's values; origin is of float64.
    __device__ __forceinline__ void split(const LaneValues& values, u32 origin, Exponents& split) const {
        if constexpr (F::EXPONENT_BITS == 8 && F::MANTISSA_BITS == 7) {
            // Shifted by one bit, a bfloat16 is its exponent and its rest, a byte each, but for the sign.
            const u32* const word = values.word;
            split.packed[0] = __byte_perm(word[0] << 1, word[2] << 1, 0x7531);
            split.packed[1] = __byte_perm(word[1] << 1, word[3] << 1, 0x7531);
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 signs = __byte_perm(word[2 * half], word[2 * half + 1], 0x7531) >> 7;
                const u32 mantissas = __byte_perm(word[2 * half] << 1, word[2 * half + 1] << 1, 0x6420);
                split.rest[half] = select_bits(EVERY_BYTE, signs, mantissas);
            }
        } else {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                split.packed[half] = 0;
                split.rest[half] = 0;
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    split.packed[half] |= exponent_of(values.value(2 * half + i % 2 + i / 2 * 4), origin) << (8 * i);
                    split.rest[half] |= Parts<F>::rest(values.value(4 * half + i)) << (8 * i);
                }
            }
        }
    }

    __device__ static __forceinline__ u32 exponent_of(Word value, u32 origin) {
        const u32 field = Parts<F>::field(value);
        return F::ORIGIN_NBYTES && field == 0 ? 0 : field - origin;
    }

    // Find a float64 block's origin; return whether the exponents are too far apart for it.
    __device__ static __forceinline__ bool find_origin(const LaneValues& values, u32& origin) {
        u32 greatest = 0;
        u32 least = ~0u;  // of those that are not zero, less one
#pragma unroll
        for (u32 i = 0; i < LANE_COUNT; ++i) {
            const u32 field = Parts<F>::field(values.value(i));
            greatest = field > greatest ? field : greatest;
            least = field - 1 < least ? field - 1 : least;
        }
        greatest = __reduce_max_sync(FULL_WARP, greatest);
        least = __reduce_min_sync(FULL_WARP, least);
        origin = greatest > 255 ? greatest - 255 : 0;
        return least != ~0u && least + 1 <= origin;
    }

    // As choose_base's first guess in reference.py; also tell whether all exponents are equal.
    __device__ static __forceinline__ u32 guess_base(const u32 (&exponent)[2], u32 normal, bool& equal) {
        // As pairs of bytes, of which the higher ones count: first the odd exponents, then the even ones.
        const u32 pairs = __vmaxu2(__vmaxu2(exponent[0], exponent[1]), __vmaxu2(exponent[0] << 8, exponent[1] << 8));
        const u32 own_greatest = pairs > pairs << 16 ? pairs : pairs << 16;
        const u32 greatest = __reduce_max_sync(FULL_WARP, own_greatest) >> 24;
        const u32 own_total = __dp4a(exponent[0], EVERY_BYTE, __dp4a(exponent[1], EVERY_BYTE, 0u));
        const u32 total = __reduce_add_sync(FULL_WARP, own_total);
        equal = total == greatest * BLOCK_COUNT;
        const u32 weighted = 2 * total + (2 * greatest + 3) * normal;
        if (normal == BLOCK_COUNT) return weighted / (4 * BLOCK_COUNT);
        return normal ? weighted / (4 * normal) : 0;
    }

    // How far a lane's exponents are below base + 2 (mod 256), a nibble each, 15 for all that are further away. These are
    // indices for look_up: 0 to 7 are o = +2 to -5.
    __device__ static __forceinline__ u32 distances(const u32 (&exponent)[2], u32 base) {
        u32 below[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 exact = bytes_minus((base + 2 & 255) * EVERY_BYTE, exponent[half]);
            const u32 far = (exact & 0x70707070) + 0x70707070 | exact;
            below[half] = (exact | spread_high_bits(far & HIGH_BITS)) & 0x0F0F0F0F;
        }
        return below[0] | below[1] << 4;
    }

    // As distances; return whether that was too easy for the warp's exponents, which is so if one is zero or not within
    // 16 of another.
    __device__ static __forceinline__ bool easy_distances(const u32 (&exponent)[2], u32 base, u32& distances) {
        const u32 top = (base + 2) * EVERY_BYTE;
        const u32 below[2] = {top - exponent[0], top - exponent[1]};
        distances = below[0] | below[1] << 4;
        // What borrows from the next byte is far itself.
        const bool far = (below[0] | below[1]) & 0xF0F0F0F0;
        return __all_sync(FULL_WARP, !far) && base - 14 < 240;
    }

    // For each of eight distances, a byte.
    struct Table {
        u32 low;
        u32 high;

        // Look up four nibbles. One of 8 and more gives eight times the high bit of the byte of eight less.
        __device__ __forceinline__ u32 look_up(u32 nibbles) const { return permute(low, high, nibbles); }
    };

    template <class ByteOf>
    __device__ static constexpr Table table_of(ByteOf byte_of) {
        Table table = {0, 0};
        for (int i = 0; i < 4; ++i) {
            table.low |= u32(byte_of(2 - i)) << (8 * i);
            table.high |= u32(byte_of(-2 - i)) << (8 * i);
        }
        return table;
    }

    // Gather bit 0 of eight nibbles that are joined of what look_up returned for both halves.
    __device__ static __forceinline__ u32 gather_values(u32 joined) { return __dp4a(joined & 0x11111111, 0x08020401u, 0u); }

    // What level 0 makes of a lane's values.
    struct Level0 {
        u32 counted;  // see down, up and rising
        u32 more;
        u32 first;    // the codes' first bits
        u32 second;

        __device__ static constexpr u32 code_and_count(int o) {
            const u32 code = o > 0 || o < -2 ? DEEPER : u32(-o);
            return code | (code == DEEPER && o != -3 ? 4 : 0);
        }
        __device__ static constexpr u32 others(int o) { return (o != -2) | (o != -5) << 1 | (o != 1) << 2; }

        __device__ __forceinline__ explicit Level0(u32 distances) {
            // A byte has room for both; those of one half in the order that makes joining them easy.
            constexpr Table low = table_of([](int o) { return 0x88 | code_and_count(o) | others(o) << 4; });
            constexpr Table high = table_of([](int o) { return 0x88 | code_and_count(o) << 4 | others(o); });
            const u32 half[2] = {low.look_up(distances), high.look_up(distances >> 16)};
            counted = select_bits(LOW_NIBBLES, half[0], half[1]);
            more = select_bits(LOW_NIBBLES, half[1], half[0]);
            first = gather_values(counted);
            second = gather_values(counted >> 1);
        }

        // How often o is -3 less how often it is 0, and 16 more.
        __device__ __forceinline__ u32 down() const { return count_flags(counted, 0x77777777, 0x44444444); }
        // How often o is 1 less how often it is -2, and 8 more.
        __device__ __forceinline__ u32 up() const { return count_flags(more, 0x55555555, 0x44444444); }
        // How often o is 1 less how often it is -5, and 8 more.
        __device__ __forceinline__ u32 rising() const { return count_flags(more, 0x66666666, 0x44444444); }
    };
    static constexpr u32 LOW_NIBBLES = 0x0F0F0F0F;
    // Makes indices of distances of 8 and more: o = -6 to -9 are 4 to 7, -10 to -13 are 0 to 3.
    static constexpr u32 FAR = 0xCCCCCCCC;

    // As choose_base's refinement, given level 0 by the guess: bits above the lower half to go down, in it to go up.
    __device__ static __forceinline__ u32 find_refinement(const Level0& guessed) {
        const u32 sum = __reduce_add_sync(FULL_WARP, (guessed.down() << 16) + guessed.up());
        // A sum that is more than what was added to it sets the lowest bit above it.
        return sum + (1023 - 16 * LANES << 16 | 511 - BLOCK_COUNT) & (1024 << 16 | 512);
    }

    // As in reference.py, given level 0 by the base.
    __device__ static __forceinline__ u32 choose_table(const Level0& level_0, u32 distances) {
        // What is against the symmetric table: of o = +2, -4 and -7 it is -5, 1 and 4.
        constexpr Table near = {0x000000FB, 0x00010000};
        // Of o = -6 and -7. Above, o = -6 was -1.
        constexpr Table far = {0, 0x00000401};
        const u32 others = distances ^ FAR;
        int against = __dp4a(int(near.look_up(distances)), int(EVERY_BYTE), 0);
        against = __dp4a(int(near.look_up(distances >> 16)), int(EVERY_BYTE), against);
        against = __dp4a(int(far.look_up(others)), int(EVERY_BYTE), against);
        against = __dp4a(int(far.look_up(others >> 16)), int(EVERY_BYTE), against);
        const u32 sum = __reduce_add_sync(FULL_WARP, (u32(against) << 16) + level_0.rising());
        if (int(sum) < 0) return SYMMETRIC;
        return (sum & 0xFFFF) < BLOCK_COUNT ? FALLING : SKEWED;
    }

    // The codes of a lane's values in a level after level 0, one behind the other.
    struct Codes {
        u32 first;
        u32 second;

        // Args:
        //     half: what was looked up for both halves, the inverted code in both nibbles.
        //     set: which of the values reach the level. The code of all others is 0.
        __device__ __forceinline__ Codes(const u32 (&half)[2], u32 set, SharedItems<u32> chosen) {
            const u32 selectors = chosen.load(set);
            const u32 low = permute(half[0], half[1], selectors);
            const u32 high = permute(half[0], half[1], selectors >> 16);
            const u32 joined = select_bits(LOW_NIBBLES, low, high);
            first = __dp4a(~joined & 0x11111111, 0x08040201u, 0u);
            second = __dp4a(~joined & 0x22222222, 0x08040201u, 0u) >> 1;
        }
    };

    // What levels 1 and 2 make of a lane's values.
    struct Deeper {
        u32 reach[3];  // which values reach levels 1 and 2, and which are escapes
        u32 start[3];  // how many are in lanes below
        u32 count[3];  // in the block
        u32 half[2][2];

        __device__ __forceinline__ Deeper(u32 reach_1, u32 distances, const TableBytes& bytes) {
            const Table level_1 = {bytes.level_1[0], bytes.level_1[1]};
            const Table level_2 = {bytes.level_2[0], bytes.level_2[1]};
            const Table level_2_far = {0, bytes.level_2_far};
            const u32 others = distances ^ FAR;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                half[0][i] = level_1.look_up(distances >> (16 * i));
                half[1][i] = level_2.look_up(distances >> (16 * i)) | level_2_far.look_up(others >> (16 * i));
            }
            reach[0] = reach_1;
#pragma unroll
            for (u32 level = 0; level < 2; ++level) {
                const u32 joined = select_bits(LOW_NIBBLES, half[level][0], half[level][1]);
                reach[level + 1] = gather_values(~(joined | joined >> 1));
            }
            // One scan counts all: there are at most 256 of each.
            const u32 own = __popc(reach[0]) + (__popc(reach[1]) << 10) + (__popc(reach[2]) << 20);
            const u32 ends = inclusive_scan(own);
            const u32 starts = ends - own;
            const u32 total = __shfl_sync(FULL_WARP, ends, LANES - 1);
#pragma unroll
            for (u32 level = 0; level < 3; ++level) {
                const u32 mask = level < 2 ? 1023 : ~0u;
                start[level] = starts >> (10 * level) & mask;
                count[level] = total >> (10 * level) & mask;
            }
        }

        __device__ __forceinline__ u32 nbytes() const { return rows_nbytes(count[0]) + rows_nbytes(count[1]) + count[2]; }
    };

    // Word i of all lanes' bits, put together; the lane's first bit is at start. No lane has more than 32.
    __device__ static __forceinline__ u32 join_bits(u32 bits, u32 start, u32 i) {
        if (i == 0) return __reduce_or_sync(FULL_WARP, shift_left(bits, start));
        return __reduce_or_sync(FULL_WARP, shifted_out(bits, start - (i - 1) * 32));
    }

    // Write levels 1 and 2 and the escapes of a coded block, for which there must be room.
    __device__ __forceinline__ void write_deeper_levels(const Deeper& deeper, const u32 (&exponent)[2],
                                                        SharedItems<u8> out) const {
        const Codes level_1(deeper.half[0], deeper.reach[0], chosen);
        const Codes level_2(deeper.half[1], deeper.reach[1], chosen);
        const u32 level_2_at = rows_nbytes(deeper.count[0]);
        // Three rows of level 1 and one of level 2 at once, each by eight lanes: most blocks have no more.
        constexpr u32 ROWS_1 = 3;
        const u32 row = lane_index() / 8;
        const RowWriter writer(lane_index() % 8);
        u32 first = join_bits(level_2.first, deeper.start[1], 0);
        u32 second = join_bits(level_2.second, deeper.start[1], 0);
        u32 left = deeper.count[1];
        u32 offset = level_2_at + lane_index() % 8;
#pragma unroll
        for (u32 i = 0; i < ROWS_1; ++i) {
            if (i == 2 && deeper.count[0] <= i * LANES) continue;
            const u32 row_first = join_bits(level_1.first, deeper.start[0], i);
            const u32 row_second = join_bits(level_1.second, deeper.start[0], i);
            if (row == i) {
                first = row_first;
                second = row_second;
            }
        }
        if (row < ROWS_1) {
            left = deeper.count[0] - row * LANES;
            offset = lane_index();
        }
        if (int(left) > 0) writer.write(out, offset, first, second, left);
#pragma unroll 1
        for (u32 i = ROWS_1; i * LANES < deeper.count[0]; ++i) {
            const u32 row_first = join_bits(level_1.first, deeper.start[0], i);
            const u32 row_second = join_bits(level_1.second, deeper.start[0], i);
            if (row == 0) writer.write(out, 8 * i + lane_index(), row_first, row_second, deeper.count[0] - i * LANES);
        }
#pragma unroll 1
        for (u32 i = 1; i * LANES < deeper.count[1]; ++i) {
            const u32 row_first = join_bits(level_2.first, deeper.start[1], i);
            const u32 row_second = join_bits(level_2.second, deeper.start[1], i);
            const u32 at = level_2_at + 8 * i + lane_index();
            if (row == 0) writer.write(out, at, row_first, row_second, deeper.count[1] - i * LANES);
        }
        out.skip(level_2_at + rows_nbytes(deeper.count[1]) + deeper.start[2]);
        if (deeper.reach[2]) {
            const u32 low = __byte_perm(exponent[0], exponent[1], 0x5410);
            const u32 high = __byte_perm(exponent[0], exponent[1], 0x7632);
            for (u32 escapes = deeper.reach[2]; escapes; escapes &= escapes - 1) {
                out.store(permute(low, high, __ffs(escapes) - 1));
                out.skip(1);
            }
        }
    }

    // The values of a sparse block that reach level 1, 32 a row. Of most there are no more rows than are kept in registers.
    struct Rows {
        static constexpr u32 KEPT = 3;
        SharedItems<u8> reached;  // the lane's value of the first row
        u32 count;
        u32 exponent[KEPT];  // behind the last one is what was there before
        u32 index[KEPT];     // that of all others behind the last one

        __device__ __forceinline__ Rows(SharedItems<u8> all, u32 count, u32 base) : reached(all), count(count) {
            reached.skip(lane_index());
#pragma unroll
            for (u32 row = 0; row < KEPT; ++row) {
                if (row * LANES < count) read(row, base, exponent[row], index[row]);
            }
        }

        __device__ __forceinline__ void read(u32 row, u32 base, u32& exponent, u32& index) const {
            exponent = reached.load(row * LANES);
            index = row * LANES + lane_index() < count ? index_of(exponent, base) : 0x7777;
        }
    };

    // Code levels 1 and 2 of a sparse block in rows at out, and the escapes behind them, as far as there is room, which
    // there must be for level 1. Return what they take.
    __device__ __forceinline__ u32 encode_deeper_levels(const Rows& rows, u32 table, u32 base, GlobalBytes out, u32 room) const {
        const Bytes8 codes = codes_of(table);
        const RowWriter writer(lane_index());
        const u32 below_lane = lanes_below();
        GlobalBytes lane_out = out;
        lane_out.skip(lane_index());
        u32 count_2 = 0;
        const auto encode_row = [&](u32 row, u32 exponent, u32 index) {
            const u32 left = rows.count - row * LANES;
            const u32 code = lane_index() < left ? codes.of(index) : 0;
            const u32 first = lanes_with(code & 1);
            const u32 second = lanes_with(code & 2);
            writer.write(lane_out, 8 * row, first, second, left);
            const u32 deeper = first & second;
            const u32 place = count_2 + __popc(deeper & below_lane);
            if ((code & DEEPER) == DEEPER) reached_2.store(code << 8 | exponent, place);
            count_2 += __popc(deeper);
        };
#pragma unroll
        for (u32 row = 0; row < Rows::KEPT; ++row) {
            if (row * LANES >= rows.count) break;
            encode_row(row, rows.exponent[row], rows.index[row]);
        }
#pragma unroll 1
        for (u32 row = Rows::KEPT; row * LANES < rows.count; ++row) {
            u32 exponent, index;
            rows.read(row, base, exponent, index);
            encode_row(row, exponent, index);
        }
        __syncwarp();
        const u32 level_2 = rows_nbytes(rows.count);
        u32 end = level_2 + rows_nbytes(count_2);
        const bool fits = end <= room;
        lane_out.skip(level_2);
        SharedItems<u16> next = reached_2;
        next.skip(lane_index());
#pragma unroll 1
        for (u32 start = 0; start < count_2; start += LANES) {
            const u32 left = count_2 - start;
            const u32 reached = lane_index() < left ? next.load() : 0;
            const u32 first = lanes_with(reached & 4 << 8);
            const u32 second = lanes_with(reached & 8 << 8);
            if (fits) writer.write(lane_out, 0, first, second, left);
            const u32 escaping = first & second;
            const u32 place = end + __popc(escaping & below_lane);
            if ((reached & 12 << 8) == 12 << 8 && place < room) out.store(reached, place);
            end += __popc(escaping);
            next.skip(LANES);
            lane_out.skip(8);
        }
        return end;
    }

    // Write the lane's part of the planes that hold the rests.
    __device__ static __forceinline__ void write_rest(const u32 (&rest)[2], u8* planes) {
        if constexpr (F::REST_BITS == 8) {
            *reinterpret_cast<uint2*>(planes + 8 * lane_index()) = make_uint2(rest[0], rest[1]);
        } else {
#pragma unroll
            for (u32 bit = 0; bit < F::REST_BITS; ++bit) {
                const u32 plane = gather_bits(rest[0] >> bit & EVERY_BYTE, rest[1] >> bit & EVERY_BYTE);
                planes[bit * BIT_PLANE_NBYTES + lane_index()] = u8(plane);
            }
        }
    }

    __device__ static __forceinline__ u32 find_low_planes(const LaneValues& values) {
        if constexpr (F::LOW_PLANES > 0) {
            u64 any = 0;
#pragma unroll
            for (u32 i = 0; i < LANE_COUNT; ++i) any |= Parts<F>::low(values.value(i));
            u64 all = __reduce_or_sync(FULL_WARP, u32(any));
            if constexpr (F::LOW_BITS > 32) all |= u64(__reduce_or_sync(FULL_WARP, u32(any >> 32))) << 32;
            return low_planes_of(all);
        }
        return 0;
    }

    // Write the lane's part of the low planes that a mask keeps.
    __device__ static __forceinline__ void write_low_planes(const LaneValues& values, u32 mask, u8* planes) {
#pragma unroll
        for (u32 plane = 0; plane < F::LOW_BYTES; ++plane) {
            if (!(mask >> plane & 1)) continue;
            u32 packed[2] = {0, 0};
#pragma unroll
            for (u32 i = 0; i < LANE_COUNT; ++i) {
                packed[i / 4] |= u32(values.value(i) >> (8 * plane) & 255) << (8 * (i % 4));
            }
            store_lane_words(planes, packed);
            planes += BYTE_PLANE_NBYTES;
        }
#pragma unroll
        for (u32 group = 0; group < F::GROUPS; ++group) {
            if (!(mask >> (F::LOW_BYTES + group) & 1)) continue;
            u32 packed[2] = {0, 0};
#pragma unroll
            for (u32 i = 0; i < LANE_COUNT; ++i) {
                const u32 bits = u32(values.value(i) >> (8 * F::LOW_BYTES + group * F::GROUP_BITS));
                packed[i / 4] |= (bits & ((1u << F::GROUP_BITS) - 1)) << (8 * (i % 4));
            }
#pragma unroll
            for (u32 bit = 0; bit < F::GROUP_BITS; ++bit) {
                const u32 bits = gather_bits(packed[0] >> bit & EVERY_BYTE, packed[1] >> bit & EVERY_BYTE);
                planes[lane_index()] = u8(bits);
                planes += BIT_PLANE_NBYTES;
            }
        }
    }

    // Make a plan for a block and write what does not depend on the plans of others.
    __device__ __forceinline__ void plan_block(const LaneValues& values, u8* head, u8* slot, BlockPlan& plan) const {
        u32 origin = 0;
        const bool far_apart = F::ORIGIN_NBYTES && find_origin(values, origin);
        const u32 mask = find_low_planes(values);
        Exponents parts;
        split(values, origin, parts);
        u32 (&exponent)[2] = parts.packed;

        u32 present = BLOCK_COUNT;
        u32 sparse = 0;
        u32 absent = 0;  // 15 for each value that is zero, if the block is sparse
        bool equal;
        u32 base = guess_base(exponent, BLOCK_COUNT, equal);
        if (equal && plan_equal(values, plan)) return;
        u32 below;
        if (!easy_distances(exponent, base, below)) {
            if (!__all_sync(FULL_WARP, (nonzero_bytes(exponent[0]) & nonzero_bytes(exponent[1])) == HIGH_BITS)) {
                u32 normal;
                count_zeros(values, exponent, normal, present, absent);
                base = guess_base(exponent, normal, equal);
            }
            // What is not present shall count as none of the exponents around the base.
            below = distances(exponent, base) | absent;
            sparse = BLOCK_COUNT - present >= MIN_SPARSE_ZEROS;
        }
        Level0 level_0(below);
        const u32 refinement = find_refinement(level_0);
        if (refinement | sparse) {
            if (refinement) base = (refinement >> 16 ? base - 1 : base + 1) & 255;
            // Nor shall it reach level 1.
            below = select_bits(absent, 0x22222222, distances(exponent, base));
            level_0 = Level0(below);
        }
        const u32 table = choose_table(level_0, below);
        const Deeper deeper(level_0.first & level_0.second, below, tables[table]);

        const u32 nbytes = F::ORIGIN_NBYTES + deeper.nbytes();
        Entry entry = {CODE_RAW, 0, ALL_LOW_PLANES};
        if (sparse) {
            // Only its size is wanted yet.
            const u32 all_nbytes = nbytes + 1 + BIT_PLANE_NBYTES + rest_nbytes(present) + rows_nbytes(present) +
                                   low_nbytes(mask, present);
            const u32 units = (all_nbytes + ITEMSIZE - 1) / ITEMSIZE;
            if (!far_apart && units <= MAX_SPARSE_UNITS) entry = {CODE_SPARSE + table, units, mask};
            if (entry.code == CODE_RAW) write_head_of_raw(values, head);
        } else if (!far_apart && nbytes <= smaller(MAX_CODED_VARIABLE_NBYTES, (RAW_VARIABLE_NBYTES - 1) / 2 * 2)) {
            entry = {table << TABLE_SHIFT | (nbytes + 1) / 2, base, mask};
            if (F::ORIGIN_NBYTES) write_word(slot, origin, F::ORIGIN_NBYTES);
            write_deeper_levels(deeper, exponent, SharedItems<u8>(slot + F::ORIGIN_NBYTES));
            if (lane_index() == 0) slot[nbytes] = 0;  // belongs to the part if the size is odd
            write_rest(parts.rest, head);
            head[F::REST_NBYTES + lane_index()] = u8(level_0.first);
            head[F::REST_NBYTES + BIT_PLANE_NBYTES + lane_index()] = u8(level_0.second);
        } else {
            write_head_of_raw(values, head);
        }
        if (lane_index() == 0) plan.set(entry, base, origin, present);
    }

    __device__ static __forceinline__ void write_head_of_raw(const LaneValues& values, u8* head) {
        // Without low planes, its static part is as large as a head.
        if (F::LOW_PLANES == 0 && lane_index() * LANE_NBYTES < F::CODED_STATIC_NBYTES) values.store(head);
    }

    // Count the exponents that are not zero and the values that are not, and tell which are if these are few enough.
    __device__ static __forceinline__ void count_zeros(const LaneValues& values, const u32 (&exponent)[2], u32& normal,
                                                       u32& present, u32& absent) {
        const u32 own_normal = __popc(nonzero_bytes(exponent[0])) + __popc(nonzero_bytes(exponent[1]));
        normal = __reduce_add_sync(FULL_WARP, own_normal);
        if (BLOCK_COUNT - normal < MIN_SPARSE_ZEROS) return;
        u32 zeros = 0;
        u32 zero = 0;
#pragma unroll
        for (u32 i = 0; i < LANE_COUNT; ++i) {
            if (values.value(i) == 0) {
                zeros += 1;
                zero |= 15u << (4 * byte_of_value(i));
            }
        }
        present = BLOCK_COUNT - __reduce_add_sync(FULL_WARP, zeros);
        if (BLOCK_COUNT - present < MIN_SPARSE_ZEROS) return;
        absent = zero;
    }

    // Write a sparse block's variable part, value by value of those that are present.
    __device__ __forceinline__ void write_sparse(const u8* source, const BlockPlan& plan, u8* position, u8* out) const {
        const RowWriter writer(lane_index());
        const u32 below_lane = lanes_below();
        LaneValues values;
        values.load(source);
        u32 present = 0;
#pragma unroll
        for (u32 i = 0; i < LANE_COUNT; ++i) present |= u32(values.value(i) != 0) << i;
        u32 next = inclusive_scan(u32(__popc(present))) - __popc(present);
#pragma unroll
        for (u32 i = 0; i < LANE_COUNT; ++i) {
            if (present >> i & 1) position[next++] = u8(LANE_COUNT * lane_index() + i);
        }
        __syncwarp();

        const Entry entry = plan.directory_entry();
        const u32 base = plan.base();
        const u32 table = entry.code - CODE_SPARSE;
        const u32 count = plan.present();
        const u32 plane_nbytes = (count + 7) / 8;
        u8* const end = out + variable_nbytes_of(entry);
        if (F::ORIGIN_NBYTES) write_word(out, plan.origin(), F::ORIGIN_NBYTES);
        out += F::ORIGIN_NBYTES;
        if (lane_index() == 0) *out = u8(base);
        out[1 + lane_index()] = u8(present);
        u8* const rest_planes = out + 1 + BIT_PLANE_NBYTES;
        u8* const level_0 = rest_planes + rest_nbytes(count);
        u32 count_1 = 0;
        for (u32 start = 0; start < count; start += LANES) {
            const u32 some = smaller(count - start, LANES);
            const bool inside = lane_index() < some;
            const Word value = inside ? load_value(source + position[start + lane_index()] * ITEMSIZE) : Word(0);
            const u32 rest = Parts<F>::rest(value);
            if constexpr (F::REST_BITS == 8) {
                if (inside) rest_planes[start + lane_index()] = u8(rest);
            } else {
#pragma unroll
                for (u32 bit = 0; bit < F::REST_BITS; ++bit) {
                    const u32 bits = __ballot_sync(FULL_WARP, rest >> bit & 1);
                    write_word(rest_planes + bit * plane_nbytes + start / 8, bits, (some + 7) / 8);
                }
            }
            const u32 exponent = exponent_of(value, plan.origin());
            const u32 below = (base - exponent) & 255;
            const u32 code = !inside ? 0 : below < DEEPER ? below : DEEPER;
            const u32 first = __ballot_sync(FULL_WARP, code & 1);
            const u32 second = __ballot_sync(FULL_WARP, code & 2);
            writer.write(GlobalBytes{level_0 + start / 4 + lane_index()}, 0, first, second, some);
            const u32 deeper = first & second;
            if (code == DEEPER) reached_1.store(exponent, count_1 + __popc(deeper & below_lane));
            count_1 += __popc(deeper);
        }
        __syncwarp();
        u8* const level_1 = level_0 + rows_nbytes(count);
        const Rows rows(reached_1, count_1, base);
        out = level_1 + encode_deeper_levels(rows, table, base, GlobalBytes{level_1}, u32(end - level_1));

        if constexpr (F::LOW_PLANES > 0) {
            for (u32 start = 0; start < count; start += LANES) {
                const u32 some = smaller(count - start, LANES);
                const bool inside = lane_index() < some;
                const Word value = inside ? load_value(source + position[start + lane_index()] * ITEMSIZE) : Word(0);
                u8* planes = out;
#pragma unroll
                for (u32 plane = 0; plane < F::LOW_BYTES; ++plane) {
                    if (!(entry.mask >> plane & 1)) continue;
                    if (inside) planes[start + lane_index()] = u8(value >> (8 * plane));
                    planes += count;
                }
#pragma unroll
                for (u32 group = 0; group < F::GROUPS; ++group) {
                    if (!(entry.mask >> (F::LOW_BYTES + group) & 1)) continue;
#pragma unroll
                    for (u32 bit = 0; bit < F::GROUP_BITS; ++bit) {
                        const u32 shift = 8 * F::LOW_BYTES + group * F::GROUP_BITS + bit;
                        const u32 bits = __ballot_sync(FULL_WARP, u32(value >> shift & 1));
                        write_word(planes + start / 8, bits, (some + 7) / 8);
                        planes += plane_nbytes;
                    }
                }
            }
            out += low_nbytes(entry.mask, count);
        }
        if (out + lane_index() < end) out[lane_index()] = 0;
        __syncwarp();  // before the next block's positions
    }
};

// Make the plan of a block.
__device__ __forceinline__ void plan_block(const FloatEncoder<D>& encoder, const LaneValues& values, u32 block,
                                           EncodeShared& shared) {
    BlockPlan& plan = shared.plan[block];
    if constexpr (D::IS_FLOAT) {
        encoder.plan_block(values, shared.head[block], shared.slot[block], plan);
    } else if (!plan_equal(values, plan)) {
        if (lane_index() == 0) plan.set({CODE_RAW, 0, ALL_LOW_PLANES}, 0, 0, 0);
    }
}

// Give every block of the tile its place within the tile's parts, and find the tile's place; one warp.
__device__ __forceinline__ void place_blocks(EncodeShared& shared, u32 blocks, TileState* states, u64 first_work) {
    u32 static_nbytes[2];
    u32 variable_nbytes[2];
    bool coded = true;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 block = 2 * lane_index() + i;
        const BlockPlan plan = shared.plan[block < blocks ? block : 0];
        const Entry entry = plan.directory_entry();
        coded &= is_coded(entry.code);
        static_nbytes[i] = block < blocks ? static_nbytes_of(entry) : 0;
        variable_nbytes[i] = block < blocks ? variable_nbytes_of(entry) : 0;
    }
    const u32 static_end = inclusive_scan(static_nbytes[0] + static_nbytes[1]);
    const u32 variable_end = inclusive_scan(variable_nbytes[0] + variable_nbytes[1]);
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 block = 2 * lane_index() + i;
        if (block >= blocks) continue;
        shared.plan[block].static_offset = static_end - static_nbytes[1] - (i ? 0 : static_nbytes[0]);
        shared.plan[block].variable_offset = variable_end - variable_nbytes[1] - (i ? 0 : variable_nbytes[0]);
    }
    const u32 static_total = __shfl_sync(FULL_WARP, static_end, LANES - 1);
    const u32 variable_total = __shfl_sync(FULL_WARP, variable_end, LANES - 1);
    coded = __all_sync(FULL_WARP, coded);
    const TileOffsets start = look_back(states, first_work, shared.work, static_total, variable_total);
    if (lane_index() == 0) {
        shared.start = start;
        shared.static_nbytes = static_total;
        shared.all_coded = coded;
    }
}

// Write the variable parts of a tile's coded blocks, half a warp a block: few take more than 32 bytes.
__device__ __forceinline__ void write_coded_variable_parts(EncodeShared& shared, u32 blocks, u8* variable_parts) {
    constexpr u32 TEAM = LANES / 2;
    // Only of types of one byte is there a part of an odd size.
    using Unit = typename WordOf<ITEMSIZE == 1 ? 1 : 2>::Type;
    const u32 first = threadIdx.x % TEAM;
    Unit* const to = reinterpret_cast<Unit*>(variable_parts) + first;
    for (u32 block = threadIdx.x / TEAM; block < blocks; block += THREADS / TEAM) {
        const u32 code = shared.plan[block].entry & 255;
        const u32 units = is_coded(code) ? coded_variable_nbytes(code) / u32(sizeof(Unit)) : 0;
        const u32 start = shared.plan[block].variable_offset / u32(sizeof(Unit));
        const Unit* const from = reinterpret_cast<const Unit*>(shared.slot[block]) + first;
        if (first < units) to[start] = from[0];
        if (first + TEAM < units) {
#pragma unroll 1
            for (u32 i = TEAM; first + i < units; i += TEAM) to[start + i] = from[i];
        }
    }
}

// Write a block's parts, but for the variable part if it is coded, to where they belong; one warp.
//
// Args:
//     has_heads: whether the heads of coded and raw blocks are written already.
__device__ __forceinline__ void write_block(const FloatEncoder<D>& encoder, const u8* source, u32 block,
                                            EncodeShared& shared, bool has_heads, u8* static_parts,
                                            u8* variable_parts) {
    const BlockPlan& plan = shared.plan[block];
    const Entry entry = plan.directory_entry();
    u8* const static_part = static_parts + plan.static_offset;
    u8* const variable_part = variable_parts + plan.variable_offset;
    const u32 lane = lane_index();
    if (D::IS_FLOAT && is_coded(entry.code)) {
        if (!has_heads) copy(static_part, shared.head[block], D::CODED_STATIC_NBYTES, lane, LANES);
        if (D::LOW_PLANES == 0 || entry.mask == 0) return;
        LaneValues values;
        values.load(source);
        FloatEncoder<D>::write_low_planes(values, entry.mask, static_part + D::CODED_STATIC_NBYTES);
    } else if (D::IS_FLOAT && is_sparse(entry.code)) {
        encoder.write_sparse(source, plan, shared.position[warp_index()], variable_part);
    } else if (entry.code == CODE_RAW) {
        if (!has_heads) copy(static_part, source, D::FULL_STATIC_NBYTES, lane, LANES);
        copy(variable_part, source + D::FULL_STATIC_NBYTES, RAW_VARIABLE_NBYTES, lane, LANES);
    } else if (entry.code == CODE_CONSTANT) {
        if (lane < CONSTANT_NBYTES) variable_part[lane] = lane < ITEMSIZE ? source[lane] : 0;
    }
}

// Write the directory's entries of a tile, and the tile's ends.
__device__ __forceinline__ void write_directory(u8* body, const Layout& layout, u64 tile, u32 blocks,
                                                const EncodeShared& shared, const TileState& state) {
    const u32 thread = threadIdx.x;
    u8* const entries = body + layout.directory_offset + tile * TILE_BLOCKS;
    if (thread < blocks) {
        const Entry entry = shared.plan[thread].directory_entry();
        entries[thread] = u8(entry.code);
        if constexpr (D::IS_FLOAT) entries[layout.blocks + thread] = u8(entry.base);
        if constexpr (D::LOW_PLANES > 0) entries[2 * layout.blocks + thread] = u8(entry.mask);
    }
    if (warp_index() == 2) {
        write_word(body + tile * TILE_ENTRY_NBYTES, state.static_end, 8);
        write_word(body + tile * TILE_ENTRY_NBYTES + 8, state.variable_end, 8);
    }
    if (tile + 1 == layout.tiles) {
        const u32 padding = u32(layout.static_offset - layout.directory_end());
        fill(body + layout.directory_end(), 0, padding, thread, THREADS);
    }
}

// Encode the tile of a ticket.
//
// PACKED: the values are first made of an accumulator, and stored.
template <bool PACKED>
__device__ __forceinline__ void encode_tile(EncodeShared& shared, const EncodePart* parts, u64 part_count,
                                            TileState* states, u32* tickets, u64 divisor) {
    // A tile waits for those before it, so it must not start before them.
    if (threadIdx.x == 0) shared.ticket = atomicAdd(tickets, 1u);
    if constexpr (D::IS_FLOAT) {
        shared.chosen[threadIdx.x] = choose_bytes(threadIdx.x);
        if (threadIdx.x == 0) {
            constexpr TableBytes skewed = FloatEncoder<D>::table_bytes(SKEWED);
            constexpr TableBytes falling = FloatEncoder<D>::table_bytes(FALLING);
            constexpr TableBytes symmetric = FloatEncoder<D>::table_bytes(SYMMETRIC);
            shared.tables[SKEWED] = skewed;
            shared.tables[FALLING] = falling;
            shared.tables[SYMMETRIC] = symmetric;
        }
    }
    __syncthreads();
    const u64 work = shared.ticket;
    const EncodePart part = parts[part_of(parts, part_count, work)];
    const Layout layout(part.count);
    const u64 tile = work - part.first_work;
    if constexpr (PACKED) {
        if (tile + 1 >= layout.tiles) {
            const u64 first = layout.blocks * BLOCK_COUNT;
            for (u32 i = threadIdx.x; i < layout.tail_count; i += THREADS) {
                pack_value(part.accumulator, part.values, first + i, divisor);
            }
        }
    }
    if (layout.blocks == 0) return;
    const u32 blocks = layout.blocks_in_tile(tile);
    u8* const source = keep(part.values + tile * TILE_BLOCKS * BLOCK_NBYTES);
    const FloatEncoder<D> encoder(shared.reached[warp_index()], shared.chosen, shared.tables);
    for (u32 block = same_in_warp(warp_index()); block < blocks; block += WARPS) {
        LaneValues values;
        if constexpr (PACKED) {
            pack_lane(part.accumulator + (tile * TILE_BLOCKS + block) * BLOCK_COUNT * ACCUMULATOR_ITEMSIZE, divisor,
                      values);
            values.store(source + block * BLOCK_NBYTES);
        } else {
            values.load(source + block * BLOCK_NBYTES);
        }
        plan_block(encoder, values, block, shared);
    }
    if (threadIdx.x == 0) shared.work = work;
    __syncthreads();
    if (warp_index() == 0) place_blocks(shared, blocks, states, part.first_work);
    __syncthreads();
    u8* const static_parts = part.body + layout.static_offset + shared.start.static_start;
    u8* const variable_parts = part.variable + shared.start.variable_start;
    // Where there are no low planes, heads are all of the static parts, which often stand as they do in a body.
    const bool only_heads = D::IS_FLOAT && D::LOW_PLANES == 0 && shared.static_nbytes == blocks * D::CODED_STATIC_NBYTES;
    if (only_heads) copy(static_parts, shared.head[0], shared.static_nbytes, threadIdx.x, THREADS);
    if (D::IS_FLOAT) write_coded_variable_parts(shared, blocks, variable_parts);
    if (only_heads && shared.all_coded) return write_directory(part.body, layout, tile, blocks, shared, states[work]);
    for (u32 block = warp_index(); block < blocks; block += WARPS) {
        write_block(encoder, source + block * BLOCK_NBYTES, block, shared, only_heads, static_parts, variable_parts);
    }
    write_directory(part.body, layout, tile, blocks, shared, states[work]);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    encode_tiles(const EncodePart* parts, u64 part_count, TileState* states, u32* tickets) {
    __shared__ EncodeShared shared;
    encode_tile<false>(shared, parts, part_count, states, tickets, 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, PACKED_RESIDENT)
    encode_packed_tiles(const EncodePart* parts, u64 part_count, TileState* states, u32* tickets, u64 divisor) {
    __shared__ EncodeShared shared;
    encode_tile<true>(shared, parts, part_count, states, tickets, divisor);
}

// Complete the bodies, a tile a thread block, and tell their sizes: one for each part.
extern "C" __global__ void __launch_bounds__(FINISH_THREADS, RESIDENT)
    finish_bodies(const EncodePart* parts, u64 part_count, const TileState* states, u64* sizes) {
    const u64 work = blockIdx.x;
    const u64 number = part_of(parts, part_count, work);
    const EncodePart part = parts[number];
    const Layout layout(part.count);
    const u64 tile = work - part.first_work;
    const u64 raw_nbytes = part.count * ITEMSIZE;
    const u32 tail_nbytes = layout.tail_count * ITEMSIZE;
    const bool last = tile + 1 >= layout.tiles;

    u64 nbytes = raw_nbytes;
    u8* variable_region = nullptr;
    if (layout.tiles) {
        const TileState& end = states[part.first_work + layout.tiles - 1];
        variable_region = part.body + layout.static_offset + end.static_end;
        nbytes = layout.static_offset + end.static_end + end.variable_end + tail_nbytes;
    }
    if (nbytes < raw_nbytes) {
        const u64 start = tile ? states[work - 1].variable_end : 0;
        const u32 variable_nbytes = states[work].variable_nbytes;
        copy(variable_region + start, part.variable + start, variable_nbytes, threadIdx.x, FINISH_THREADS);
        if (last) {
            copy(variable_region + states[work].variable_end, part.values + layout.blocks * BLOCK_NBYTES, tail_nbytes,
                 threadIdx.x, FINISH_THREADS);
        }
    } else {
        nbytes = raw_nbytes;
        const u64 start = tile * TILE_BLOCKS * BLOCK_NBYTES;
        const u64 end = last ? raw_nbytes : start + TILE_BLOCKS * BLOCK_NBYTES;
        copy(part.body + start, part.values + start, u32(end - start), threadIdx.x, FINISH_THREADS);
    }
    if (last && threadIdx.x == 0) sizes[number] = nbytes;
}
