// Decoding a body around its blocks. Include it inside an anonymous namespace of one instruction set's file.

// What decoding the floats of a group of blocks needs.
template <class Kernels, class D, bool = D::IS_FLOAT>
struct DecodedGroup {
    Parts parts[GROUP_BLOCKS];
    Bits present[GROUP_BLOCKS];
    alignas(64) uint8_t expanded[GROUP_BLOCKS][round_up(D::FULL_STATIC_NBYTES, 64)];  // sparse blocks' planes
    typename Kernels::Decoding decoding[GROUP_BLOCKS];
};

template <class Kernels, class D>
struct DecodedGroup<Kernels, D, false> {};

// What becomes of decoded values: they stay at the target, or a function combines them with what is there.
struct Output {
    uint8_t* target;
    size_t itemsize;  // at the target
    void (*combine)(const uint8_t* values, uint8_t* target, size_t count) = nullptr;
};

// Decode a body of which nothing is trusted. A tile's parts are read only when the sizes of all its blocks are known
// to end where its tile ends say, inside the regions.
template <class Kernels, class D>
class Decoder {
  public:
    Decoder(const uint8_t* body, size_t nbytes, size_t count, Output output)
        : layout(count), directory(body, layout), body(body), body_end(body + nbytes), output(output) {}

    // Decode a share of the tiles, and with the last one the tail.
    Status decode(Share tiles) {
        const Status status = find_regions(tiles.first);
        if (status != OK) return status;
        output.target += tiles.first * TILE_BLOCKS * BLOCK_COUNT * output.itemsize;
        for (size_t tile = tiles.first; tile < tiles.last; ++tile) {
            const size_t first = tile * TILE_BLOCKS;
            const size_t last = smaller(first + TILE_BLOCKS, layout.blocks);
            bool usual;
            const Status tile_status = check_tile(tile, first, last, usual);
            if (tile_status != OK) return tile_status;
            for (size_t block = first; block < last; block += GROUP_BLOCKS) {
                const size_t blocks = smaller(GROUP_BLOCKS, last - block);
                target = output.combine ? values : output.target;
                const bool good = usual ? decode_group<true>(block, blocks) : decode_group<false>(block, blocks);
                if (!good) return WRONG_BLOCK_SIZE;
                put(values, blocks * BLOCK_COUNT);
            }
        }
        if (tiles.last < layout.tiles) return OK;
        const uint8_t* const tail = body_end - layout.tail_nbytes;
        if (!output.combine) std::memcpy(output.target, tail, layout.tail_nbytes);
        put(tail, layout.tail_nbytes / ITEMSIZE<D>);
        return OK;
    }

  private:
    const Layout<D> layout;
    const Directory<D, const uint8_t> directory;
    const uint8_t* const body;
    const uint8_t* const body_end;

    Output output;                 // of the next group
    uint8_t* target;               // of the next block
    const uint8_t* static_part;    // of the next block
    const uint8_t* variable_part;  // of the next block
    size_t static_nbytes = 0;
    size_t variable_nbytes = 0;
    size_t static_end = 0;    // of the tiles that are checked
    size_t variable_end = 0;  // of the tiles that are checked

    DecodedGroup<Kernels, D> group;
    alignas(64) uint8_t values[GROUP_BLOCKS * BLOCK_NBYTES<D>];  // a group's, if they are combined

    void put(const uint8_t* decoded, size_t count) {
        if (output.combine) output.combine(decoded, output.target, count);
        output.target += count * output.itemsize;
    }

    // Find where the parts of a share start; the share before finds out whether its last tile's ends are true.
    Status find_regions(size_t first_tile) {
        const size_t nbytes = body_end - body;
        if (nbytes < layout.static_offset) return ENDS_IN_DIRECTORY;
        if (layout.tiles) {
            const uint8_t* const last_tile_ends = body + (layout.tiles - 1) * TILE_ENTRY_NBYTES;
            static_nbytes = load<uint64_t>(last_tile_ends);
            variable_nbytes = load<uint64_t>(last_tile_ends + 8);
        }
        size_t remaining = nbytes - layout.static_offset;  // subtractions, because sums of hostile sizes may wrap
        if (static_nbytes > remaining) return WRONG_SIZE;
        remaining -= static_nbytes;
        if (variable_nbytes > remaining || remaining - variable_nbytes != layout.tail_nbytes) return WRONG_SIZE;
        if (first_tile) {
            const uint8_t* const ends = body + (first_tile - 1) * TILE_ENTRY_NBYTES;
            static_end = load<uint64_t>(ends);
            variable_end = load<uint64_t>(ends + 8);
            if (static_end > static_nbytes || variable_end > variable_nbytes) return WRONG_TILE_END;
        }
        static_part = body + layout.static_offset + static_end;
        variable_part = body + layout.static_offset + static_nbytes + variable_end;
        return OK;
    }

    // Check a tile's sizes, and tell whether it is a usual one.
    Status check_tile(size_t tile, size_t first, size_t last, bool& usual) {
        usual = is_usual(first, last);
        for (size_t block = first; block < last && !usual; ++block) {
            const Entry entry = directory.read(block);
            if (!is_valid<D>(entry)) return BAD_ENTRY;
            const PartSizes sizes = part_sizes<D>(entry);
            static_end += sizes.static_nbytes;
            variable_end += sizes.variable_nbytes;
        }
        const uint8_t* const tile_ends = body + tile * TILE_ENTRY_NBYTES;
        const bool as_told = load<uint64_t>(tile_ends) == static_end && load<uint64_t>(tile_ends + 8) == variable_end;
        return as_told && static_end <= static_nbytes && variable_end <= variable_nbytes ? OK : WRONG_TILE_END;
    }

    // Tell whether all blocks of a tile are coded ones with all their planes; then add their sizes.
    bool is_usual(size_t first, size_t last) {
        if constexpr (!D::IS_FLOAT) return false;
        uint8_t greatest_code = 0;
        uint8_t greatest_part = 0;
        uint8_t planes = ALL_LOW_PLANES<D>;
        unsigned parts = 0;
        for (size_t block = first; block < last; ++block) {
            const Entry entry = directory.read(block);
            const uint8_t part = entry.code & ((1 << TABLE_SHIFT) - 1);
            greatest_code = entry.code > greatest_code ? entry.code : greatest_code;
            greatest_part = part > greatest_part ? part : greatest_part;
            planes = entry.mask == ALL_LOW_PLANES<D> ? planes : uint8_t(~ALL_LOW_PLANES<D>);
            parts += part;
        }
        const bool usual = is_coded(greatest_code) && coded_variable_nbytes(greatest_part) < RAW_VARIABLE_NBYTES<D> &&
                           planes == ALL_LOW_PLANES<D>;
        if (usual) {
            static_end += (last - first) * D::FULL_STATIC_NBYTES;
            variable_end += 2 * parts;
        }
        return usual;
    }

    template <bool USUAL>
    bool decode_group(size_t first, size_t blocks) {
        Entry entry[GROUP_BLOCKS];
        for (size_t i = 0; i < blocks; ++i) {
            entry[i] = directory.read(first + i);
            const PartSizes sizes = USUAL ? PartSizes{D::FULL_STATIC_NBYTES, coded_variable_nbytes(entry[i].code)}
                                          : part_sizes<D>(entry[i]);
            if (!USUAL && is_elided(entry[i].code)) {
                decode_special(entry[i].code, target + i * BLOCK_NBYTES<D>);
            } else if constexpr (D::IS_FLOAT) {
                if (!read_block<USUAL>(i, entry[i], sizes.variable_nbytes)) return false;
            }
            static_part += sizes.static_nbytes;
            variable_part += sizes.variable_nbytes;
        }
        if constexpr (D::IS_FLOAT) {
            for (size_t i = 0; i < blocks; ++i) {
                if (USUAL || !is_elided(entry[i].code)) Kernels::decode_deeper_levels(group.decoding[i]);
            }
            for (size_t i = 0; i < blocks; ++i) join_block<USUAL>(i, entry[i].code);
        }
        target += blocks * BLOCK_NBYTES<D>;
        return true;
    }

    // Read a coded or sparse block's codes; return whether they take the size that the entry tells.
    template <bool USUAL>
    INLINE bool read_block(size_t i, Entry entry, size_t nbytes) {
        static_assert(VARIABLE_ROOM<D> >= MAX_SPARSE_UNITS * ITEMSIZE<D>);
        uint8_t scratch[VARIABLE_ROOM<D>];
        const uint8_t* part = variable_part;
        if (size_t(body_end - variable_part) < VARIABLE_ROOM<D>) {
            // What stands behind those bytes may be read, but a block whose codes need it is refused.
            std::memcpy(scratch, variable_part, nbytes);
            part = scratch;
        }
        const uint8_t* next = part;
        Parts& parts = group.parts[i];
        parts.mask = USUAL ? ALL_LOW_PLANES<D> : entry.mask;
        if (D::HAS_ORIGIN) {
            parts.origin = load<uint16_t>(next);
            next += ORIGIN_NBYTES;
        }
        if (USUAL || is_coded(entry.code)) {
            parts.planes = static_part;
            next = Kernels::read_codes(static_part + D::REST_NBYTES, entry.base, entry.code >> TABLE_SHIFT, next,
                                       group.decoding[i]);
            return round_up(next - part, 2) == nbytes;
        }
        next = read_sparse(i, entry, next);
        return round_up(next - part, ITEMSIZE<D>) == nbytes;
    }

    // Expand a sparse block's planes and read its codes; return their end.
    NOINLINE const uint8_t* read_sparse(size_t i, Entry entry, const uint8_t* next) {
        uint8_t* const planes = group.expanded[i];
        Bits& present = group.present[i];
        group.parts[i].planes = planes;
        const uint8_t base = *next++;
        std::memcpy(present.word, next, BIT_PLANE_NBYTES);
        next += BIT_PLANE_NBYTES;
        const int count = present.count();
        next = expand_planes<Kernels>(present, count, REST_PLANES<D>, next, planes);
        next = read_level_0_rows<Kernels>(present, count, next, planes + D::REST_NBYTES);
        next = Kernels::read_codes(planes + D::REST_NBYTES, base, entry.code - CODE_SPARSE, next, group.decoding[i]);
        return expand_planes<Kernels>(present, count, low_planes<D>(entry.mask), next,
                                      planes + D::CODED_STATIC_NBYTES);
    }

    template <bool USUAL>
    void join_block(size_t i, uint8_t code) {
        if (!USUAL && is_elided(code)) return;
        uint8_t* const values = target + i * BLOCK_NBYTES<D>;
        if (USUAL || is_coded(code)) {
            Kernels::template join<D>(group.parts[i], group.decoding[i], values);
        } else {
            Kernels::template join_sparse<D>(group.parts[i], group.decoding[i], group.present[i], values);
        }
    }

    static bool is_elided(uint8_t code) { return !is_coded(code) && !is_sparse(code); }

    void decode_special(uint8_t code, uint8_t* values) {
        if (code == CODE_RAW) {
            std::memcpy(values, static_part, D::FULL_STATIC_NBYTES);
            std::memcpy(values + D::FULL_STATIC_NBYTES, variable_part, RAW_VARIABLE_NBYTES<D>);
        } else if (code == CODE_ZERO) {
            std::memset(values, 0, BLOCK_NBYTES<D>);
        } else {
            const auto value = load<typename D::Value>(variable_part);
            for (size_t i = 0; i < BLOCK_COUNT; ++i) store(values + i * sizeof value, value);
        }
    }
};

template <class Kernels, class D>
Status decode_tiles(const uint8_t* body, size_t nbytes, size_t count, Output output, int threads) {
    const Layout<D> layout(count);
    Team team(useful_threads(threads, count * ITEMSIZE<D>));
    const size_t shares = layout.tiles ? smaller(team.threads, layout.tiles) : 1;
    Status status[MAX_THREADS];
    share_out(team, shares, [&](size_t i) {
        status[i] = Decoder<Kernels, D>(body, nbytes, count, output).decode(Share(layout.tiles, i, shares));
    });
    for (size_t i = 0; i < shares; ++i) {
        if (status[i] != OK) return status[i];
    }
    return OK;
}
