// Decode bodies, of which nothing is trusted: a thread block for each tile of 64 blocks, and a warp for a block at a time.
//
// A tile's parts stand between the ends of the tile before and its own, if all sizes in its directory entries add up to
// these and the ends are inside the regions; nothing of it is read before that is known. A block's codes are read no
// further than the size in its entry goes. What is wrong becomes a part's status; what is right may still be written.

#include "parts.cuh"
#include "reduce.cuh"

struct DecodePart {
    const u8* body;
    u64 nbytes;
    u8* target;  // values, or accumulator elements
    u64 count;
    u64 first_work;
};

// A block's directory entry, and where its parts are within the tile's.
struct alignas(16) BlockPlace {
    u32 entry;  // code, base and mask, a byte each
    u32 static_offset;
    u32 variable_offset;
    u32 meaning[3];  // of a coded block: for each level, the exponents that codes 0, 1 and 2 stand for, a byte each, and 0

    __device__ __forceinline__ void set_meaning(Entry coded);
    __device__ __forceinline__ u32 code() const { return entry & 255; }
    __device__ __forceinline__ u32 base() const { return entry >> 8 & 255; }
    __device__ __forceinline__ u32 mask() const { return entry >> 16; }
};

// Half as many warps as elsewhere: what each does once for a tile counts, and decoding takes little shared memory.
constexpr u32 DECODE_WARPS = WARPS / 2;
constexpr u32 DECODE_THREADS = DECODE_WARPS * LANES;
constexpr u32 DECODE_RESIDENT = 2 * RESIDENT;

// Levels 1 and 2 and the escapes of a block take no more.
constexpr u32 MAX_DEEPER_NBYTES = 2 * (BLOCK_COUNT / 4) + BLOCK_COUNT;

// What a warp needs for a block.
struct DecodeScratch {
    alignas(8) u32 levels[MAX_DEEPER_NBYTES / 4 + 2];  // levels 1 and 2 and the escapes; what is behind them is read, but not used
    u8 exponent[2][BLOCK_COUNT];            // of the values that reach levels 1 and 2
};

// For each set of up to eight, a bit each, what that is as nibbles.
struct SetTables {
    u32 spread[256];  // 1 for each that is in it
    u32 ranks[256];   // how many are before each that is in it, and for all others how many there are

    __device__ __forceinline__ void fill(u32 set) {
        const u32 members = spread_to_nibbles(set);
        spread[set] = members;
        ranks[set] = select_bits(members * 15, members * 0x11111110, u32(__popc(set)) * 0x11111111);
    }
};

struct DecodeShared {
    alignas(16) Word values[DECODE_WARPS][D::IS_FLOAT ? BLOCK_COUNT : 1];  // those of a sparse block that are present
    DecodeScratch scratch[DECODE_WARPS];
    SetTables sets;
    BlockPlace place[TILE_BLOCKS];
    u64 static_start;
    u64 variable_start;
    u64 variable_region;
    u32 status;
};

// What is done with decoded values.
template <bool REDUCE>
struct Output {
    u8* target;
    u64 op;

    static constexpr u32 NBYTES = REDUCE ? ACCUMULATOR_ITEMSIZE : ITEMSIZE;

    // Of the values from that one on.
    __device__ __forceinline__ Output at(u64 first) const { return {keep(target + first * NBYTES), op}; }

    // A lane's values of a block, whose first value has that number.
    __device__ __forceinline__ void put(u32 first, const LaneValues& values) const {
        if constexpr (REDUCE) {
            combine_lane(op, values, target + first * NBYTES);
        } else {
            values.store(target + first * NBYTES);
        }
    }

    __device__ __forceinline__ void put_one(u64 number, Word value) const {
        if constexpr (REDUCE) {
            combine_value(op, value, target, number);
        } else {
            store_value(target + number * ITEMSIZE, value);
        }
    }
};

constexpr u32 DOES_NOT_FIT = ~0u;

__device__ __forceinline__ u32 bit_at(const u8* bits, u32 i) { return bits[i / 8] >> (i % 8) & 1; }

// Decodes the blocks of a warp, one after the other.
template <class F>
struct FloatDecoder {
    // The scratch memory: the levels as words and as bytes, and the exponents of the values that reach levels 1 and 2.
    const SharedItems<u32> words;
    const SharedItems<u8> bytes;
    const SharedItems<u8> exponents_1;
    const SharedItems<u8> exponents_2;
    const SharedItems<u32> spread;
    const SharedItems<u32> ranks;
    const u32 lane_bit = 1u << lane_index();
    const u32 magnitudes = 0x7FFF7FFF;

    __device__ __forceinline__ FloatDecoder(const DecodeScratch& scratch, const SetTables& sets)
        : words(scratch.levels),
          bytes(reinterpret_cast<const u8*>(scratch.levels)),
          exponents_1(scratch.exponent[0]),
          exponents_2(scratch.exponent[1]),
          spread(sets.spread),
          ranks(sets.ranks) {}

    // What codes 0, 1 and 2 of a level stand for, a byte each.
    __device__ static constexpr u32 offsets_of(u32 table, u32 level) {
        constexpr int offsets[TABLES][2][3] = {
            {{1, -3, -4}, {-5, -6, -7}}, {{-3, -4, -5}, {1, -6, -7}}, {{1, 2, -3}, {-4, -5, -6}}};
        u32 packed = 0;
        for (u32 code = 0; code < 3; ++code) packed |= u32(offsets[table][level][code] & 255) << (8 * code);
        return packed;
    }

    __device__ static __forceinline__ u32 offsets(u32 table, u32 level) {
        constexpr u32 skewed[2] = {offsets_of(SKEWED, 0), offsets_of(SKEWED, 1)};
        constexpr u32 falling[2] = {offsets_of(FALLING, 0), offsets_of(FALLING, 1)};
        constexpr u32 symmetric[2] = {offsets_of(SYMMETRIC, 0), offsets_of(SYMMETRIC, 1)};
        if (level == 0) return table == SKEWED ? skewed[0] : table == FALLING ? falling[0] : symmetric[0];
        return table == SKEWED ? skewed[1] : table == FALLING ? falling[1] : symmetric[1];
    }

    // The codes of a row: bit i is value i's, zero behind the last one. All lanes hold the same.
    struct Row {
        u32 first;
        u32 second;

        __device__ __forceinline__ u32 deeper() const { return first & second; }

        // Read a row of count codes, or of 32 if that is more, from its bits on.
        __device__ static __forceinline__ Row of(uint2 bits, u32 count) {
            count = smaller(count, LANES);
            const u32 inside = shift_right(~0u, LANES - count);
            return {bits.x & inside, (shift_right(bits.x, count) | shift_left(bits.y, LANES - count)) & inside};
        }
    };

    // What the codes of a level stand for.
    struct Meaning {
        u32 exponent[3];

        __device__ __forceinline__ Meaning(u32 base, u32 offsets)
            : exponent{base + offsets, base + (offsets >> 8), base + (offsets >> 16)} {}

        // The exponent of the lane's code, in the lowest byte; next is the level's that follows.
        __device__ __forceinline__ u32 of(Row row, u32 lane_bit, SharedItems<u8> next) const {
            const bool first = row.first & lane_bit;
            const bool second = row.second & lane_bit;
            if (first && second) return next.load(__popc(row.deeper() & (lane_bit - 1)));
            return first ? exponent[1] : second ? exponent[2] : exponent[0];
        }
    };

    // Read the levels after level 0 of a sparse block, at most room bytes, and store the exponents of the values that reach level 1.
    // Return what they take.
    __device__ __forceinline__ u32 read_deeper_levels(const u8* levels, u32 room, u32 count_1, u32 table, u32 base) const {
        const u32 staged = smaller(room, MAX_DEEPER_NBYTES);
#pragma unroll 1
        for (u32 i = lane_index(); i < staged; i += LANES) bytes.store(levels[i], i);
        __syncwarp();
        const u32 level_2 = rows_nbytes(count_1);
        if (level_2 > room) return DOES_NOT_FIT;
        u32 count_2 = 0;
#pragma unroll 1
        for (u32 start = 0; start < count_1; start += LANES) {
            count_2 += __popc(Row::of(words.load_two(start / 16), count_1 - start).deeper());
        }

        u32 end = level_2 + rows_nbytes(count_2);
        if (end > room) return DOES_NOT_FIT;
        const Meaning meaning_2(base, offsets(table, 1));
#pragma unroll 1
        for (u32 start = 0; start < count_2; start += LANES) {
            const u32 place = level_2 + start / 4;
            const u32 shift = place % 4 * 8;
            SharedItems<u32> from = words;
            from.skip(place / 4);
            const u32 first = from.load(0);
            const u32 second = from.load(1);
            const u32 third = from.load(2);
            const uint2 bits = make_uint2(__funnelshift_r(first, second, shift), __funnelshift_r(second, third, shift));
            const Row row = Row::of(bits, count_2 - start);
            const u32 escapes = __popc(row.deeper());
            if (end + escapes > room) return DOES_NOT_FIT;
            SharedItems<u8> next = bytes;
            next.skip(end);
            exponents_2.store(meaning_2.of(row, lane_bit, next), start + lane_index());
            end += escapes;
        }
        __syncwarp();

        SharedItems<u8> next = exponents_2;
        const Meaning meaning_1(base, offsets(table, 0));
#pragma unroll 1
        for (u32 start = 0; start < count_1; start += LANES) {
            const Row row = Row::of(words.load_two(start / 16), count_1 - start);
            exponents_1.store(meaning_1.of(row, lane_bit, next), start + lane_index());
            next.skip(__popc(row.deeper()));
        }
        __syncwarp();
        return end;
    }

    __device__ static __forceinline__ u32 read_origin(const u8* variable_part) {
        return F::ORIGIN_NBYTES ? u32(load_bytes<2>(variable_part)) : 0;
    }

    __device__ static __forceinline__ u32 field_of(u32 exponent, u32 origin) {
        return F::ORIGIN_NBYTES && exponent == 0 ? 0 : exponent + origin;
    }

    // Read the lane's part of bit planes; the bits come from bit 0 on.
    __device__ static __forceinline__ void read_bit_planes(const u8* planes, u32 bits, u32 (&packed)[2]) {
        packed[0] = 0;
        packed[1] = 0;
        for (u32 bit = 0; bit < bits; ++bit) {
            const u32 plane = planes[bit * BIT_PLANE_NBYTES + lane_index()];
            packed[0] |= spread_bits(plane) << bit;
            packed[1] |= spread_bits(plane >> 4) << bit;
        }
    }

    // What codes stand for, a byte each, by the first and second bits of up to eight of them.
    struct Exponents {
        u32 low;
        u32 high;

        __device__ __forceinline__ Exponents(u32 first, u32 second, u32 meaning, SharedItems<u32> spread) {
            const u32 codes = spread.load(first) + 2 * spread.load(second);
            low = permute(meaning, 0, codes);
            high = permute(meaning, 0, codes >> 16);
        }

        // Fill in what is 0: the exponents of a set of these, one behind the other, and 0 behind the last one.
        __device__ __forceinline__ void fill_in(const Exponents& deeper, u32 set, SharedItems<u32> ranks) {
            const u32 selectors = ranks.load(set);
            low |= permute(deeper.low, deeper.high, selectors);
            high |= permute(deeper.low, deeper.high, selectors >> 16);
        }
    };

    // The values of a lane that reach a level.
    struct Reached {
        u32 own;
        u32 start;  // how many are in lanes below
        u32 count;  // in the block

        __device__ __forceinline__ explicit Reached(u32 set) : own(__popc(set)) {
            const u32 end = inclusive_scan(own);
            start = end - own;
            count = __shfl_sync(FULL_WARP, end, LANES - 1);
        }
    };

    // Read a row of count codes, or of 32 if that is more, at place in the scratch memory. Lanes may read several.
    __device__ __forceinline__ Row read_row(u32 place, int count) const {
        const u32 shift = place % 4 * 8;
        SharedItems<u32> from = words;
        from.skip(place / 4);
        const u32 bits[3] = {from.load(0), from.load(1), from.load(2)};
        return Row::of(make_uint2(__funnelshift_r(bits[0], bits[1], shift), __funnelshift_r(bits[1], bits[2], shift)),
                       count > 0 ? count : 0);
    }

    // Read the codes of a lane's values that reach a level, of which the first row is at place; behind the last code is
    // what was there before.
    __device__ __forceinline__ Row read_codes(const Reached& reached, u32 place) const {
        // Lane i reads row i. A lane's codes are in one row or two.
        const Row row = read_row(place + LANES / 4 * lane_index(), int(reached.count) - int(LANES * lane_index()));
        const u32 lane = reached.start / LANES;
        const u32 first[2] = {__shfl_sync(FULL_WARP, row.first, lane), __shfl_sync(FULL_WARP, row.first, lane + 1)};
        const u32 second[2] = {__shfl_sync(FULL_WARP, row.second, lane), __shfl_sync(FULL_WARP, row.second, lane + 1)};
        return {__funnelshift_r(first[0], first[1], reached.start), __funnelshift_r(second[0], second[1], reached.start)};
    }

    // Which of a lane's values that reach a level are handed on.
    __device__ static __forceinline__ u32 handed_on(const Reached& reached, Row codes) {
        return codes.deeper() & ~(~0u << reached.own);
    }

    // What a lane's codes of a level stand for, and 0 for all that are handed on and behind the last one.
    __device__ __forceinline__ Exponents exponents_of(const Reached& reached, Row codes, u32 meaning) const {
        const u32 behind = ~0u << reached.own;
        return Exponents(either_of(codes.first, behind, 255), either_of(codes.second, behind, 255), meaning, spread);
    }

    // Decode a coded block; return whether its codes take the size that the entry tells.
    __device__ __forceinline__ bool decode_coded(const BlockPlace& place, const u8* static_part,
                                                 const u8* variable_part, LaneValues& values) const {
        const u32 nbytes = coded_variable_nbytes(place.code());
        if (nbytes < F::ORIGIN_NBYTES) return false;
        const u32 room = nbytes - F::ORIGIN_NBYTES;
        const u8* const levels = variable_part + F::ORIGIN_NBYTES + lane_index();
        if (lane_index() < room) bytes.store(levels[0], lane_index());
        if (room > LANES) {
#pragma unroll 1
            for (u32 i = LANES; lane_index() + i < room; i += LANES) bytes.store(levels[i], lane_index() + i);
        }
        const u32 first = static_part[F::REST_NBYTES + lane_index()];
        const u32 second = static_part[F::REST_NBYTES + BIT_PLANE_NBYTES + lane_index()];
        Exponents all(first, second, place.meaning[0], spread);
        __syncwarp();

        // What is read before its size is known to be right is inside the scratch memory, for a level has at most 64 bytes.
        const u32 reach_1 = first & second;
        const Reached reached_1(reach_1);
        const Row codes_1 = read_codes(reached_1, 0);
        const u32 reach_2 = handed_on(reached_1, codes_1);
        const Reached reached_2(reach_2);
        const u32 level_2_at = rows_nbytes(reached_1.count);
        Row codes_2;
        u32 escapes;
        u32 escapes_before;  // in lanes below
        u32 escape_count;
        if (reached_2.count <= LANES) {
            // As in most blocks. All lanes read the same.
            const Row row = read_row(level_2_at, reached_2.count);
            codes_2 = {shift_right(row.first, reached_2.start), shift_right(row.second, reached_2.start)};
            escapes = handed_on(reached_2, codes_2);
            escapes_before = __popc(row.deeper() & ~shift_left(~0u, reached_2.start));
            escape_count = __popc(row.deeper());
        } else {
            codes_2 = read_codes(reached_2, level_2_at);
            escapes = handed_on(reached_2, codes_2);
            const Reached escaping(escapes);
            escapes_before = escaping.start;
            escape_count = escaping.count;
        }
        Exponents level_1 = exponents_of(reached_1, codes_1, place.meaning[1]);
        Exponents level_2 = exponents_of(reached_2, codes_2, place.meaning[2]);
        const u32 escapes_at = level_2_at + rows_nbytes(reached_2.count);
        if ((F::ORIGIN_NBYTES + escapes_at + escape_count + 1) / 2 * 2 != nbytes) return false;
        SharedItems<u8> next = bytes;
        next.skip(escapes_at + escapes_before);
        for (; escapes; escapes &= escapes - 1) {
            const u32 shift = 8 * (__ffs(escapes) - 1);
            const u32 exponent = next.load();
            level_2.low |= shift_left(exponent, shift);
            level_2.high |= shifted_out(exponent, shift);
            next.skip(1);
        }
        level_1.fill_in(level_2, reach_2, ranks);
        all.fill_in(level_1, reach_1, ranks);

        u32 rest[2];
        if constexpr (F::REST_BITS == 8) {
            load_lane_words(static_part, rest);
        } else {
            read_bit_planes(static_part, F::REST_BITS, rest);
        }
        const u32 exponent[2] = {all.low, all.high};
        join(exponent, rest, read_origin(variable_part), place.mask(), static_part + F::CODED_STATIC_NBYTES, values);
        return true;
    }

    // Put a lane's values together, with the low planes that the mask tells.
    __device__ __forceinline__ void join(const u32 (&exponent)[2], const u32 (&rest)[2], u32 origin, u32 mask,
                                                const u8* planes, LaneValues& values) const {
        if constexpr (F::EXPONENT_BITS == 8 && F::MANTISSA_BITS == 7) {
            // Rotated by one bit, a bfloat16 is its exponent and its rest, a byte each.
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 rotated = __byte_perm(rest[i / 2], exponent[i / 2], i % 2 ? 0x7362 : 0x5140);
                values.word[i] = select_bits(magnitudes, rotated >> 1, rotated << 15);
            }
        } else {
            Word word[LANE_COUNT];
#pragma unroll
            for (u32 i = 0; i < LANE_COUNT; ++i) {
                word[i] = Parts<F>::join(field_of(byte_at(exponent, i), origin), byte_at(rest, i), 0);
            }
#pragma unroll
            for (u32 plane = 0; plane < F::LOW_BYTES; ++plane) {
                if (!(mask >> plane & 1)) continue;
                u32 packed[2];
                load_lane_words(planes, packed);
#pragma unroll
                for (u32 i = 0; i < LANE_COUNT; ++i) word[i] |= Word(Word(byte_at(packed, i)) << (8 * plane));
                planes += BYTE_PLANE_NBYTES;
            }
#pragma unroll
            for (u32 group = 0; group < F::GROUPS; ++group) {
                if (!(mask >> (F::LOW_BYTES + group) & 1)) continue;
                u32 packed[2];
                read_bit_planes(planes, F::GROUP_BITS, packed);
#pragma unroll
                for (u32 i = 0; i < LANE_COUNT; ++i) {
                    word[i] |= Word(Word(byte_at(packed, i)) << (8 * F::LOW_BYTES + group * F::GROUP_BITS));
                }
                planes += F::GROUP_BITS * BIT_PLANE_NBYTES;
            }
#pragma unroll
            for (u32 i = 0; i < LANE_COUNT; ++i) values.set(i, word[i]);
        }
    }

    // Decode a sparse block; return whether its codes take the size that the entry tells.
    __device__ __forceinline__ bool decode_sparse(const BlockPlace& place, const u8* part, Word* compact,
                                                  LaneValues& values) const {
        constexpr u32 HEAD_NBYTES = F::ORIGIN_NBYTES + 1 + BIT_PLANE_NBYTES;
        const u32 nbytes = place.base() * ITEMSIZE;
        if (nbytes < HEAD_NBYTES) return false;
        const u32 origin = read_origin(part);
        const u32 base = part[F::ORIGIN_NBYTES];
        const u32 present = part[F::ORIGIN_NBYTES + 1 + lane_index()];
        const u32 end = inclusive_scan(u32(__popc(present)));
        const u32 count = __shfl_sync(FULL_WARP, end, LANES - 1);
        const u32 level_0 = HEAD_NBYTES + rest_nbytes(count);
        const u32 level_1 = level_0 + rows_nbytes(count);
        if (level_1 > nbytes) return false;
        u32 codes = 0;  // of the lane's value of each row, two bits
        u32 count_1 = 0;
        for (u32 start = 0; start < count; start += LANES) {
            const u32 some = smaller(count - start, LANES);
            const u8* const row = part + level_0 + start / 4;
            u32 code = 0;
            if (lane_index() < some) code = bit_at(row, lane_index()) | bit_at(row, some + lane_index()) << 1;
            codes |= code << (start / 16);
            count_1 += __popc(lanes_with(code == DEEPER));
        }
        const u32 taken = read_deeper_levels(part + level_1, nbytes - level_1, count_1, place.code() - CODE_SPARSE,
                                                 base);
        if (taken == DOES_NOT_FIT) return false;
        const u32 low = level_1 + taken;
        if ((low + low_nbytes(place.mask(), count) + ITEMSIZE - 1) / ITEMSIZE * ITEMSIZE != nbytes) return false;

        const u32 plane_nbytes = (count + 7) / 8;
        SharedItems<u8> next = exponents_1;
        for (u32 start = 0; start < count; start += LANES) {
            const u32 i = start + lane_index();
            const bool inside = i < count;
            const u32 code = codes >> (start / 16) & 3;
            const u32 deeper = __ballot_sync(FULL_WARP, code == DEEPER);
            if (inside) {
                const u32 exponent = code == DEEPER ? next.load(__popc(deeper & (lane_bit - 1))) : base - code & 255;
                u32 rest = 0;
                if constexpr (F::REST_BITS == 8) {
                    rest = part[HEAD_NBYTES + i];
                } else {
#pragma unroll
                    for (u32 bit = 0; bit < F::REST_BITS; ++bit) {
                        rest |= bit_at(part + HEAD_NBYTES + bit * plane_nbytes, i) << bit;
                    }
                }
                compact[i] = Parts<F>::join(field_of(exponent, origin), rest, read_low(part + low, place.mask(), count, i));
            }
            next.skip(__popc(deeper));
        }
        __syncwarp();
        u32 from = end - __popc(present);
#pragma unroll
        for (u32 i = 0; i < LANE_COUNT; ++i) values.set(i, present >> i & 1 ? compact[from++] : Word(0));
        __syncwarp();
        return true;
    }

    // The low bits of a sparse block's value i of those that are present.
    __device__ static __forceinline__ Word read_low(const u8* planes, u32 mask, u32 count, u32 i) {
        Word low = 0;
#pragma unroll
        for (u32 plane = 0; plane < F::LOW_BYTES; ++plane) {
            if (!(mask >> plane & 1)) continue;
            low |= Word(Word(planes[i]) << (8 * plane));
            planes += count;
        }
#pragma unroll
        for (u32 group = 0; group < F::GROUPS; ++group) {
            if (!(mask >> (F::LOW_BYTES + group) & 1)) continue;
#pragma unroll
            for (u32 bit = 0; bit < F::GROUP_BITS; ++bit) {
                low |= Word(Word(bit_at(planes, i)) << (8 * F::LOW_BYTES + group * F::GROUP_BITS + bit));
                planes += (count + 7) / 8;
            }
        }
        return low;
    }
};

__device__ __forceinline__ void BlockPlace::set_meaning(Entry coded) {
    const u32 base = coded.base * EVERY_BYTE;
    const u32 table = coded.code >> TABLE_SHIFT;
    meaning[0] = bytes_minus(base, 0x00020100) & 0x00FFFFFF;
    // Bytes' sums without carries, as a difference.
    meaning[1] = bytes_minus(base, bytes_minus(0, FloatDecoder<D>::offsets(table, 0))) & 0x00FFFFFF;
    meaning[2] = bytes_minus(base, bytes_minus(0, FloatDecoder<D>::offsets(table, 1))) & 0x00FFFFFF;
}

// Check the sizes of a body.
__device__ __forceinline__ u32 find_regions(const DecodePart& part, const Layout& layout, u64& static_nbytes,
                                            u64& variable_nbytes) {
    static_nbytes = 0;
    variable_nbytes = 0;
    if (part.nbytes < layout.static_offset) return ENDS_IN_DIRECTORY;
    if (layout.tiles) {
        const u8* const last_tile_ends = part.body + (layout.tiles - 1) * TILE_ENTRY_NBYTES;
        static_nbytes = load_bytes<8>(last_tile_ends);
        variable_nbytes = load_bytes<8>(last_tile_ends + 8);
    }
    u64 remaining = part.nbytes - layout.static_offset;  // subtractions, because sums of hostile sizes may wrap
    if (static_nbytes > remaining) return WRONG_SIZE;
    remaining -= static_nbytes;
    if (variable_nbytes > remaining) return WRONG_SIZE;
    return remaining - variable_nbytes == layout.tail_count * ITEMSIZE ? OK : WRONG_SIZE;
}

// Find and check where a tile's parts are, and what is wrong; one warp.
__device__ __forceinline__ void find_tile(const DecodePart& part, const Layout& layout, u64 tile, DecodeShared& shared) {
    u64 static_nbytes;
    u64 variable_nbytes;
    u32 status = find_regions(part, layout, static_nbytes, variable_nbytes);
    const u32 blocks = layout.tiles ? layout.blocks_in_tile(tile) : 0;
    u64 static_start = 0;
    u64 variable_start = 0;
    if (status == OK && blocks) {
        const u8* const entries = part.body + layout.directory_offset + tile * TILE_BLOCKS;
        u32 static_sizes[2];
        u32 variable_sizes[2];
        bool valid = true;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 block = 2 * lane_index() + i;
            Entry entry = {CODE_ZERO, 0, 0};
            if (block < blocks) {
                entry.code = entries[block];
                if constexpr (D::IS_FLOAT) entry.base = entries[layout.blocks + block];
                if constexpr (D::LOW_PLANES > 0) entry.mask = entries[2 * layout.blocks + block];
                shared.place[block].entry = entry.code | entry.base << 8 | entry.mask << 16;
                if constexpr (D::IS_FLOAT) shared.place[block].set_meaning(entry);
            }
            valid &= is_valid(entry);
            static_sizes[i] = static_nbytes_of(entry);
            variable_sizes[i] = variable_nbytes_of(entry);
        }
        const u32 static_end = inclusive_scan(static_sizes[0] + static_sizes[1]);
        const u32 variable_end = inclusive_scan(variable_sizes[0] + variable_sizes[1]);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 block = 2 * lane_index() + i;
            if (block >= blocks) continue;
            shared.place[block].static_offset = static_end - static_sizes[1] - (i ? 0 : static_sizes[0]);
            shared.place[block].variable_offset = variable_end - variable_sizes[1] - (i ? 0 : variable_sizes[0]);
        }
        const u32 static_total = __shfl_sync(FULL_WARP, static_end, LANES - 1);
        const u32 variable_total = __shfl_sync(FULL_WARP, variable_end, LANES - 1);
        const u8* const ends = part.body + tile * TILE_ENTRY_NBYTES;
        if (tile) {
            static_start = load_bytes<8>(ends - 16);
            variable_start = load_bytes<8>(ends - 8);
        }
        // Starts inside the regions, so that the sums do not wrap.
        const bool as_told = static_start <= static_nbytes && variable_start <= variable_nbytes &&
                             static_start + static_total == load_bytes<8>(ends) &&
                             variable_start + variable_total == load_bytes<8>(ends + 8) &&
                             static_start + static_total <= static_nbytes &&
                             variable_start + variable_total <= variable_nbytes;
        if (!__all_sync(FULL_WARP, valid)) {
            status = BAD_ENTRY;
        } else if (!as_told) {
            status = WRONG_TILE_END;
        }
    }
    if (lane_index() == 0) {
        shared.status = status;
        shared.static_start = layout.static_offset + static_start;
        shared.variable_start = layout.static_offset + static_nbytes + variable_start;
    }
}

// Decode a block; return whether its codes take the size that its entry tells. One warp.
__device__ __forceinline__ bool decode_block(const FloatDecoder<D>& decoder, const BlockPlace& place,
                                             const u8* static_part, const u8* variable_part, DecodeShared& shared,
                                             LaneValues& values) {
    if constexpr (D::IS_FLOAT) {
        if (is_coded(place.code())) return decoder.decode_coded(place, static_part, variable_part, values);
        if (is_sparse(place.code())) {
            return decoder.decode_sparse(place, variable_part, shared.values[warp_index()], values);
        }
    }
    if (place.code() == CODE_RAW) {
        // In some lane the values of a float64 are from both parts.
        if constexpr (D::FULL_STATIC_NBYTES % LANE_NBYTES == 0) {
            const bool in_static = lane_index() * LANE_NBYTES < D::FULL_STATIC_NBYTES;
            values.load(in_static ? static_part : variable_part - D::FULL_STATIC_NBYTES);
        } else {
#pragma unroll
            for (u32 i = 0; i < LANE_COUNT; ++i) {
                const u32 offset = lane_index() * LANE_NBYTES + i * ITEMSIZE;
                const bool in_static = offset < D::FULL_STATIC_NBYTES;
                values.set(i, load_value((in_static ? static_part : variable_part - D::FULL_STATIC_NBYTES) + offset));
            }
        }
        return true;
    }
    const Word value = place.code() == CODE_ZERO ? Word(0) : load_value(variable_part);
#pragma unroll
    for (u32 i = 0; i < LANE_COUNT; ++i) values.set(i, value);
    return true;
}

template <bool REDUCE>
__device__ __forceinline__ void decode_tile(DecodeShared& shared, const DecodePart* parts, u64 part_count,
                                            u64* statuses, u64 op) {
    const u64 work = blockIdx.x;
    const u64 number = part_of(parts, part_count, work);
    const DecodePart part = parts[number];
    const Layout layout(part.count);
    const u64 tile = work - part.first_work;
    const Output<REDUCE> output = {part.target, op};
    if constexpr (D::IS_FLOAT) {
        for (u32 set = threadIdx.x; set < 256; set += DECODE_THREADS) shared.sets.fill(set);
    }
    if (warp_index() == 0) find_tile(part, layout, tile, shared);
    __syncthreads();
    if (shared.status != OK) {
        if (threadIdx.x == 0) atomicMax(statuses + number, u64(shared.status));
        return;
    }
    const u32 blocks = layout.tiles ? layout.blocks_in_tile(tile) : 0;
    const FloatDecoder<D> decoder(shared.scratch[warp_index()], shared.sets);
    const Output<REDUCE> tile_output = output.at(tile * TILE_BLOCKS * BLOCK_COUNT);
    const u8* const static_parts = keep(part.body + shared.static_start);
    const u8* const variable_parts = keep(part.body + shared.variable_start);
    for (u32 block = same_in_warp(warp_index()); block < blocks; block += DECODE_WARPS) {
        const BlockPlace place = shared.place[block];
        LaneValues values;
        const bool right = decode_block(decoder, place, static_parts + place.static_offset,
                                        variable_parts + place.variable_offset, shared, values);
        if (right) {
            tile_output.put(block * BLOCK_COUNT, values);
        } else if (lane_index() == 0) {
            atomicMax(statuses + number, u64(WRONG_BLOCK_SIZE));
        }
        __syncwarp();
    }
    if (tile + 1 >= layout.tiles) {
        const u8* const tail = part.body + part.nbytes - layout.tail_count * ITEMSIZE;
        for (u32 i = threadIdx.x; i < layout.tail_count; i += DECODE_THREADS) {
            output.put_one(layout.blocks * BLOCK_COUNT + i, load_value(tail + i * ITEMSIZE));
        }
    }
}

extern "C" __global__ void __launch_bounds__(DECODE_THREADS, DECODE_RESIDENT)
    decode_tiles(const DecodePart* parts, u64 part_count, u64* statuses) {
    __shared__ DecodeShared shared;
    decode_tile<false>(shared, parts, part_count, statuses, SET);
}

extern "C" __global__ void __launch_bounds__(DECODE_THREADS, DECODE_RESIDENT)
    decode_reduce_tiles(const DecodePart* parts, u64 part_count, u64* statuses, u64 op) {
    __shared__ DecodeShared shared;
    decode_tile<true>(shared, parts, part_count, statuses, op);
}
