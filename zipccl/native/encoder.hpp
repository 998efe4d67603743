// Encoding a body around its blocks. Include it inside an anonymous namespace of one instruction set's file.

template <class D>
inline bool all_values_equal(const uint8_t* source) {
    // Nearly every block that is not constant shows it in its first bytes.
    if (load<uint64_t>(source) != load<uint64_t>(source + ITEMSIZE<D>)) return false;
    return std::memcmp(source, source + ITEMSIZE<D>, BLOCK_NBYTES<D> - ITEMSIZE<D>) == 0;
}

template <class D>
inline uint8_t code_of_equal_values(const uint8_t* source) {
    return load<typename D::Value>(source) ? CODE_CONSTANT : CODE_ZERO;
}

template <class D>
inline void write_constant(const uint8_t* source, uint8_t* variable_part) {
    std::memset(variable_part, 0, CONSTANT_NBYTES<D>);
    std::memcpy(variable_part, source, ITEMSIZE<D>);
}

// What makes the values that are encoded, a group at a time, from an accumulator; or nothing, if they are there.
struct Input {
    uint8_t* values;
    const uint8_t* accumulator = nullptr;
    size_t itemsize = 0;  // of the accumulator
    uint64_t divisor = 1;
    void (*pack)(const uint8_t* accumulator, uint8_t* target, size_t count, uint64_t divisor) = nullptr;

    void make(size_t first, size_t count, size_t value_nbytes) const {
        if (pack) pack(accumulator + first * itemsize, values + first * value_nbytes, count, divisor);
    }
};

// Where the parts of some tiles, first to last - 1, stand after they were encoded; their tile ends count from there.
struct EncodedTiles {
    size_t first;
    size_t last;
    uint8_t* static_parts;
    uint8_t* variable_parts;
    size_t static_nbytes;
    size_t variable_nbytes;
};

// Encode some tiles of the blocks layout. The body has room for static_offset + count * itemsize bytes.
//
// Their static parts go to where they stand if every block before has one and no plane is left out. Their variable
// parts go to a place that is given, which lies in the body behind all static parts and ends at room_end; where sparse
// blocks need more room than that, it is moved into what they leave of the static region. Or it lies elsewhere and has
// room for all that may come.
template <class Kernels, class D>
class FloatEncoder {
  public:
    FloatEncoder(Input input, size_t count, uint8_t* body, EncodedTiles& tiles, const uint8_t* room_end)
        : layout(count),
          directory(body, layout),
          body(body),
          room_end(room_end),
          tiles(tiles),
          input(input),
          source(input.values + tiles.first * TILE_BLOCKS * BLOCK_NBYTES<D>),
          static_part(tiles.static_parts),
          variable_part(tiles.variable_parts),
          blocks_left(smaller(tiles.last * TILE_BLOCKS, layout.blocks) - tiles.first * TILE_BLOCKS) {}

    void encode() {
        for (size_t tile = tiles.first; tile < tiles.last; ++tile) {
            const size_t first = tile * TILE_BLOCKS;
            const size_t last = smaller(first + TILE_BLOCKS, layout.blocks);
            for (size_t block = first; block < last; block += GROUP_BLOCKS) {
                const size_t blocks = smaller(GROUP_BLOCKS, last - block);
                input.make(block * BLOCK_COUNT, blocks * BLOCK_COUNT, ITEMSIZE<D>);
                encode_group(block, blocks);
            }
            tiles.static_nbytes = static_part - tiles.static_parts;
            tiles.variable_nbytes = variable_part - tiles.variable_parts;
            store<uint64_t>(body + tile * TILE_ENTRY_NBYTES, tiles.static_nbytes);
            store<uint64_t>(body + tile * TILE_ENTRY_NBYTES + 8, tiles.variable_nbytes);
        }
    }

  private:
    const Layout<D> layout;
    const Directory<D, uint8_t> directory;
    uint8_t* const body;
    const uint8_t* const room_end;

    EncodedTiles& tiles;
    const Input input;
    const uint8_t* source;   // of the next block
    uint8_t* static_part;    // of the next block
    uint8_t* variable_part;  // of the next block
    size_t blocks_left;      // the next block and those behind it

    // A sparse block's planes without the values that are zero.
    struct Sparse {
        uint8_t rest[D::REST_NBYTES + 64];
        uint8_t level_0[2 * BIT_PLANE_NBYTES];
        uint8_t low[D::LOW_BITS * BIT_PLANE_NBYTES + 64];
    };

    alignas(64) uint8_t exponent[GROUP_BLOCKS][BLOCK_COUNT] = {};
    uint8_t base[GROUP_BLOCKS];
    Split split[GROUP_BLOCKS];
    Sparse sparse[GROUP_BLOCKS];
    typename Kernels::Encoding encoding[GROUP_BLOCKS];

    void encode_group(size_t first, size_t blocks) {
        Entry entry[GROUP_BLOCKS];  // of coded and sparse blocks only the kind and the mask, at first
        uint8_t* level_0[GROUP_BLOCKS];
        uint8_t* static_end = static_part;
        bool any_sparse = false;
        for (size_t i = 0; i < blocks; ++i) {
            entry[i] = split_block(source + i * BLOCK_NBYTES<D>, static_end, i);
            level_0[i] = is_sparse(entry[i].code) ? sparse[i].level_0 : static_end + D::REST_NBYTES;
            static_end += part_sizes<D>(entry[i]).static_nbytes;
            any_sparse |= is_sparse(entry[i].code);
        }
        Kernels::guess_bases(exponent, base);
        // The end of a sparse block's exponents shall count as none that matter, then as ones that end in level 0.
        if (any_sparse) fill_ends(entry, blocks, 128);
        Kernels::refine_bases(exponent, base);
        if (any_sparse) fill_ends(entry, blocks, 0);
        for (size_t i = 0; i < blocks; ++i) {
            if (has_levels(entry[i])) Kernels::encode_level_0(exponent[i], base[i], level_0[i], encoding[i]);
        }
        Kernels::choose_tables(encoding);
        for (size_t i = 0; i < blocks; ++i) {
            if (has_levels(entry[i])) Kernels::code_deeper_levels(encoding[i]);
        }
        for (size_t i = 0; i < blocks; ++i) {
            write_block(i, entry[i], static_end);
            directory.write(first + i, entry[i]);
            const PartSizes sizes = part_sizes<D>(entry[i]);
            source += BLOCK_NBYTES<D>;
            static_part += sizes.static_nbytes;
            variable_part += sizes.variable_nbytes;
            blocks_left -= 1;
        }
    }

    static bool has_levels(Entry entry) { return is_coded(entry.code) || is_sparse(entry.code); }

    Entry split_block(const uint8_t* values, uint8_t* planes, size_t i) {
        if (all_values_equal<D>(values)) return {code_of_equal_values<D>(values), 0, 0};
        Kernels::template split<D>(values, planes, exponent[i], split[i]);
        if (split[i].far_apart) return {CODE_RAW, 0, ALL_LOW_PLANES<D>};
        if (split[i].count > int(BLOCK_COUNT) - MIN_SPARSE_ZEROS) return {0, 0, split[i].mask};
        compact(planes, i);
        return {CODE_SPARSE, 0, split[i].mask};
    }

    NOINLINE void compact(const uint8_t* planes, size_t i) {
        const Bits& present = split[i].present;
        const int count = split[i].count;
        compact_planes<Kernels>(present, count, REST_PLANES<D>, planes, sparse[i].rest);
        compact_planes<Kernels>(present, count, low_planes<D>(split[i].mask), planes + D::CODED_STATIC_NBYTES,
                                sparse[i].low);
        alignas(64) uint8_t exponents[BLOCK_COUNT + 64];
        Kernels::compact_bytes(present, exponent[i], exponents);
        Kernels::fill_end(exponents, count, 0);
        std::memcpy(exponent[i], exponents, BLOCK_COUNT);
    }

    NOINLINE void fill_ends(const Entry (&entry)[GROUP_BLOCKS], size_t blocks, uint8_t above_base) {
        for (size_t i = 0; i < blocks; ++i) {
            if (!is_sparse(entry[i].code)) continue;
            Kernels::fill_end(exponent[i], split[i].count, uint8_t(base[i] + above_base));
        }
    }

    // Write a block's variable part and complete its entry; a block whose variable part is too large becomes raw.
    void write_block(size_t i, Entry& entry, uint8_t*& static_end) {
        if (entry.code == CODE_ZERO) return;
        if (entry.code == CODE_CONSTANT) {
            reserve(CONSTANT_NBYTES<D>, 0);
            return write_constant<D>(source, variable_part);
        }
        if (entry.code == CODE_RAW) return write_raw(entry, static_end);
        const bool coded = is_coded(entry.code);
        const bool has_room = size_t(room_end - variable_part) >= VARIABLE_ROOM<D>;
        uint8_t scratch[VARIABLE_ROOM<D>];
        uint8_t* const part = has_room ? variable_part : scratch;
        uint8_t* const end = coded ? write_coded(i, part) : write_sparse(i, entry.mask, part);
        store<uint64_t>(end, 0);
        const size_t nbytes = round_up(end - part, coded ? 2 : ITEMSIZE<D>);
        const size_t most = coded ? smaller(MAX_CODED_VARIABLE_NBYTES, RAW_VARIABLE_NBYTES<D> - 1)
                                  : MAX_SPARSE_UNITS * ITEMSIZE<D>;
        if (nbytes > most) return write_raw(entry, static_end);
        if (!has_room) {
            reserve(nbytes, part_sizes<D>(entry).static_nbytes);
            std::memcpy(variable_part, scratch, nbytes);
        }
        if (coded) {
            entry.base = base[i];
            entry.code = uint8_t(encoding[i].table << TABLE_SHIFT | nbytes / 2);
        } else {
            entry.base = uint8_t(nbytes / ITEMSIZE<D>);
            entry.code = uint8_t(CODE_SPARSE + encoding[i].table);
        }
    }

    uint8_t* write_coded(size_t i, uint8_t* out) {
        return Kernels::write_deeper_levels(encoding[i], write_origin(i, out));
    }

    NOINLINE uint8_t* write_sparse(size_t i, uint8_t mask, uint8_t* out) {
        const int count = split[i].count;
        out = write_origin(i, out);
        *out++ = base[i];
        std::memcpy(out, split[i].present.word, BIT_PLANE_NBYTES);
        out += BIT_PLANE_NBYTES;
        std::memcpy(out, sparse[i].rest, D::REST_NBYTES);  // at least as many bytes as there are
        out += REST_PLANES<D>.nbytes(count);
        out = write_level_0_rows(sparse[i].level_0, count, out);
        out = Kernels::write_deeper_levels(encoding[i], out);
        if (!D::LOW_PLANES) return out;
        const size_t low_nbytes = low_planes<D>(mask).nbytes(count);
        std::memcpy(out, sparse[i].low, low_nbytes);
        return out + low_nbytes;
    }

    uint8_t* write_origin(size_t i, uint8_t* out) {
        if (!D::HAS_ORIGIN) return out;
        store(out, split[i].origin);
        return out + ORIGIN_NBYTES;
    }

    NOINLINE void write_raw(Entry& entry, uint8_t*& static_end) {
        reserve(RAW_VARIABLE_NBYTES<D>, D::FULL_STATIC_NBYTES);
        // The group's later static parts move up if this one was to be smaller.
        uint8_t* const part_end = static_part + part_sizes<D>(entry).static_nbytes;
        uint8_t* const raw_end = static_part + D::FULL_STATIC_NBYTES;
        if (part_end != raw_end) std::memmove(raw_end, part_end, static_end - part_end);
        static_end += raw_end - part_end;
        std::memcpy(static_part, source, D::FULL_STATIC_NBYTES);
        std::memcpy(variable_part, source + D::FULL_STATIC_NBYTES, RAW_VARIABLE_NBYTES<D>);
        entry = {CODE_RAW, 0, ALL_LOW_PLANES<D>};
    }

    // Make room for the next block's variable part, given its static part's size: only sparse blocks leave too little,
    // and they leave room in the static region.
    NOINLINE void reserve(size_t variable_nbytes, size_t static_nbytes) {
        if (size_t(room_end - variable_part) >= variable_nbytes) return;
        uint8_t* const region = static_part + static_nbytes + (blocks_left - 1) * D::FULL_STATIC_NBYTES;
        std::memmove(region, tiles.variable_parts, variable_part - tiles.variable_parts);
        variable_part -= tiles.variable_parts - region;
        tiles.variable_parts = region;
    }
};

// Bring the parts of all shares together, tell the tile ends, and add the tail.
template <class D>
void assemble(const Layout<D>& layout, const uint8_t* tail, uint8_t* body, EncodedTiles* share, size_t shares,
              Team& team) {
    std::memset(body + layout.directory_end(), 0, layout.static_offset - layout.directory_end());
    size_t static_nbytes = 0;
    size_t variable_nbytes = 0;
    size_t variable_start[MAX_THREADS];
    for (size_t i = 0; i < shares; ++i) {
        for (size_t tile = share[i].first; tile < share[i].last; ++tile) {
            uint8_t* const ends = body + tile * TILE_ENTRY_NBYTES;
            store<uint64_t>(ends, load<uint64_t>(ends) + static_nbytes);
            store<uint64_t>(ends + 8, load<uint64_t>(ends + 8) + variable_nbytes);
        }
        uint8_t* const target = body + layout.static_offset + static_nbytes;
        if (target != share[i].static_parts) std::memmove(target, share[i].static_parts, share[i].static_nbytes);
        variable_start[i] = variable_nbytes;
        static_nbytes += share[i].static_nbytes;
        variable_nbytes += share[i].variable_nbytes;
    }
    uint8_t* const variable_region = body + layout.static_offset + static_nbytes;
    share_out(team, shares, [&](size_t i) {
        uint8_t* const target = variable_region + variable_start[i];
        if (target != share[i].variable_parts) std::memmove(target, share[i].variable_parts, share[i].variable_nbytes);
    });
    std::memcpy(variable_region + variable_nbytes, tail, layout.tail_nbytes);
}

// Encode the blocks layout; return the body's size, or that of the values if it would not be smaller: then the body
// is yet to be filled.
template <class Kernels, class D>
size_t encode_floats(Input input, size_t count, uint8_t* body, int threads) {
    const Layout<D> layout(count);
    const size_t raw_nbytes = count * ITEMSIZE<D>;
    uint8_t* const static_region = body + layout.static_offset;
    Team team(useful_threads(threads, raw_nbytes));
    EncodedTiles share[MAX_THREADS];
    const uint8_t* room_end[MAX_THREADS];
    size_t shares = smaller(team.threads, layout.tiles);
    for (size_t i = 0; i < shares && shares > 1; ++i) {
        const Share tiles(layout.tiles, i, shares);
        const size_t room = (tiles.last - tiles.first) * TILE_BLOCKS * BLOCK_NBYTES<D> + VARIABLE_ROOM<D>;
        uint8_t* const scratch = team.scratch(i, room);
        if (!scratch) shares = 1;
        share[i] = {tiles.first, tiles.last, static_region + tiles.first * TILE_BLOCKS * D::FULL_STATIC_NBYTES, scratch};
        room_end[i] = scratch + room;
    }
    if (shares == 1) {
        share[0] = {0, layout.tiles, static_region, static_region + layout.blocks * D::FULL_STATIC_NBYTES};
        room_end[0] = static_region + raw_nbytes;
    }
    share_out(team, shares, [&](size_t i) {
        FloatEncoder<Kernels, D>(input, count, body, share[i], room_end[i]).encode();
    });
    const size_t tail_count = layout.tail_nbytes / ITEMSIZE<D>;
    input.make(count - tail_count, tail_count, ITEMSIZE<D>);
    size_t nbytes = layout.static_offset + layout.tail_nbytes;
    for (size_t i = 0; i < shares; ++i) nbytes += share[i].static_nbytes + share[i].variable_nbytes;
    if (nbytes >= raw_nbytes) return raw_nbytes;
    assemble(layout, input.values + raw_nbytes - layout.tail_nbytes, body, share, shares, team);
    return nbytes;
}

// As FloatEncoder, for values of which only blocks of equal ones are elided. Finding those takes little, and nothing is
// copied before it is known that there are enough.
template <class D>
class WholeEncoder {
  public:
    WholeEncoder(const uint8_t* source, size_t count, uint8_t* body)
        : layout(count), source(source), body(body), code(body + layout.directory_offset) {}

    // Return the body's size, or what it would have, but nothing less, if it were not smaller than limit.
    size_t encode(size_t limit) {
        size_t static_nbytes = 0;
        size_t variable_nbytes = 0;
        for (size_t block = 0; block < layout.blocks; ++block) {
            const uint8_t* const values = source + block * BLOCK_NBYTES<D>;
            code[block] = all_values_equal<D>(values) ? code_of_equal_values<D>(values) : CODE_RAW;
            const PartSizes sizes = part_sizes<D>({code[block], 0, 0});
            static_nbytes += sizes.static_nbytes;
            variable_nbytes += sizes.variable_nbytes;
            uint8_t* const tile_ends = body + block / TILE_BLOCKS * TILE_ENTRY_NBYTES;
            store<uint64_t>(tile_ends, static_nbytes);
            store<uint64_t>(tile_ends + 8, variable_nbytes);
        }
        const size_t nbytes = layout.static_offset + static_nbytes + variable_nbytes + layout.tail_nbytes;
        if (nbytes < limit) copy_parts(static_nbytes, body + nbytes - layout.tail_nbytes);
        return nbytes;
    }

  private:
    const Layout<D> layout;
    const uint8_t* const source;
    uint8_t* const body;
    uint8_t* const code;

    void copy_parts(size_t static_nbytes, uint8_t* tail) {
        std::memset(body + layout.directory_end(), 0, layout.static_offset - layout.directory_end());
        uint8_t* static_part = body + layout.static_offset;
        uint8_t* variable_part = static_part + static_nbytes;
        const uint8_t* values = source;
        for (size_t block = 0; block < layout.blocks; ++block, values += BLOCK_NBYTES<D>) {
            if (code[block] == CODE_RAW) {
                std::memcpy(static_part, values, BLOCK_NBYTES<D>);
                static_part += BLOCK_NBYTES<D>;
            } else if (code[block] == CODE_CONSTANT) {
                write_constant<D>(values, variable_part);
                variable_part += CONSTANT_NBYTES<D>;
            }
        }
        std::memcpy(tail, values, layout.tail_nbytes);
    }
};

template <class Kernels, class D>
size_t encode_body(Input input, size_t count, uint8_t* body, int threads) {
    const size_t raw_nbytes = count * ITEMSIZE<D>;
    size_t nbytes = raw_nbytes;
    if (count < BLOCK_COUNT || !D::IS_FLOAT) input.make(0, count, ITEMSIZE<D>);
    if (count >= BLOCK_COUNT) {
        if constexpr (D::IS_FLOAT) {
            nbytes = encode_floats<Kernels, D>(input, count, body, threads);
        } else {
            nbytes = WholeEncoder<D>(input.values, count, body).encode(raw_nbytes);
        }
    }
    if (nbytes < raw_nbytes) return nbytes;
    std::memcpy(body, input.values, raw_nbytes);
    return raw_nbytes;
}
