// The body of a payload around its blocks: tile ends, directory, regions and tail, for any instruction set.
//
// Include it inside an anonymous namespace of one instruction set's file, so that no two files share its code.
// Kernels is that file's class with the steps of coding one block. Each step is done for a group of blocks before the
// next step, because then the blocks' work overlaps in the processor:
//
//     uint8_t split<D>(source, static_part, exponent)
//         Write the rests and, packed, the low planes that are not zero into the static part, whose whole room may be
//         overwritten; write the exponents; return the mask of the low planes.
//     void choose_bases(exponents, bases, blocks)
//         Find the base exponents of all blocks of the group.
//     void encode_level_0(exponent, base, static_part, encoding)
//         Write level 0 into the static part and the values that reach level 1 into the encoding.
//     void code_deeper_levels(encoding)
//         Find the codes of the deeper levels.
//     size_t write_deeper_levels(encoding, variable_part)
//         Write them and return the variable part's size.
//
//     bool read_codes(entry, static_part, variable_part, variable_nbytes, decoding)
//         Read the codes of all levels, unless they do not take exactly variable_nbytes: then return false.
//     void decode_deeper_levels(decoding)
//         Find the exponents of the values that reach level 1.
//     void join<D>(entry, static_part, decoding, target)
//         Decode level 0 and write the values.
//
// Kernels::Encoding and Kernels::Decoding are what the steps leave for the next. Variable parts have VARIABLE_ROOM
// bytes, all of which may be read or overwritten.

// A block's codes take at most 64 + 64 + 256 bytes; the rest is for vectors that reach past the end.
constexpr size_t VARIABLE_ROOM = 512;

constexpr size_t GROUP_BLOCKS = 8;

struct Entry {
    uint8_t base;
    uint8_t code;
    uint8_t mask;
};

template <class D>
constexpr size_t BLOCK_NBYTES = BLOCK_COUNT * sizeof(typename D::Value);
template <class D>
constexpr size_t FULL_STATIC_NBYTES = CODED_STATIC_NBYTES + D::LOW_PLANES * D::LOW_PLANE_NBYTES;
template <class D>
constexpr size_t RAW_VARIABLE_NBYTES = BLOCK_NBYTES<D> - FULL_STATIC_NBYTES<D>;
template <class D>
constexpr uint8_t ALL_LOW_PLANES = (1 << D::LOW_PLANES) - 1;

template <class T>
inline T load(const uint8_t* address) {
    T value;
    std::memcpy(&value, address, sizeof value);
    return value;
}

template <class T>
inline void store(uint8_t* address, T value) {
    std::memcpy(address, &value, sizeof value);
}

inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

template <class D>
struct Layout {
    size_t blocks;
    size_t tiles;
    size_t tail_nbytes;
    size_t directory_offset;
    size_t static_offset;

    explicit Layout(size_t count)
        : blocks(count / BLOCK_COUNT),
          tiles((blocks + TILE_BLOCKS - 1) / TILE_BLOCKS),
          tail_nbytes(count % BLOCK_COUNT * sizeof(typename D::Value)),
          directory_offset(tiles * TILE_ENTRY_NBYTES),
          static_offset((directory_end() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) {}

    size_t directory_end() const { return directory_offset + blocks * (D::LOW_PLANES ? 3 : 2); }
};

// The directory's arrays in a body; Byte is uint8_t or const uint8_t.
template <class D, class Byte>
struct Directory {
    Byte* base;
    Byte* code;
    Byte* mask;

    Directory(Byte* body, const Layout<D>& layout)
        : base(body + layout.directory_offset), code(base + layout.blocks), mask(code + layout.blocks) {}

    Entry read(size_t block) const {
        return {base[block], code[block], D::LOW_PLANES ? mask[block] : uint8_t(0)};
    }

    void write(size_t block, Entry entry) const {
        base[block] = entry.base;
        code[block] = entry.code;
        if (D::LOW_PLANES) mask[block] = entry.mask;
    }
};

struct PartSizes {
    size_t static_nbytes;
    size_t variable_nbytes;
};

inline bool is_coded(uint8_t code) { return (code & ~CODE_SYMMETRIC) < CODE_RAW; }

template <class D>
PartSizes part_sizes(Entry entry) {
    if (is_coded(entry.code)) {
        const size_t planes = __builtin_popcount(entry.mask);
        return {CODED_STATIC_NBYTES + planes * D::LOW_PLANE_NBYTES, 2 * size_t(entry.code & ~CODE_SYMMETRIC)};
    }
    if (entry.code == CODE_RAW) return {FULL_STATIC_NBYTES<D>, RAW_VARIABLE_NBYTES<D>};
    return {0, entry.code == CODE_CONSTANT ? sizeof(typename D::Value) : 0};
}

template <class D>
bool is_valid(Entry entry) {
    if (is_coded(entry.code)) {
        return 2 * size_t(entry.code & ~CODE_SYMMETRIC) < RAW_VARIABLE_NBYTES<D> && entry.mask <= ALL_LOW_PLANES<D>;
    }
    if (entry.code == CODE_RAW) return entry.mask == ALL_LOW_PLANES<D>;
    return (entry.code == CODE_ZERO || entry.code == CODE_CONSTANT) && entry.mask == 0;
}

template <class D>
bool all_values_equal(const uint8_t* source) {
    constexpr size_t itemsize = sizeof(typename D::Value);
    // Nearly every block that is not constant shows it in its first bytes.
    if (load<uint64_t>(source) != load<uint64_t>(source + itemsize)) return false;
    return std::memcmp(source, source + itemsize, BLOCK_NBYTES<D> - itemsize) == 0;
}

// Encode the blocks layout into a body with room for static_offset + count * itemsize bytes; return its size.
//
// Static parts go to their place. Variable parts go to where they stand if no block is zero or constant and no plane
// is left out, and are moved once at the end if that was not so.
template <class Kernels, class D>
class Encoder {
  public:
    Encoder(const uint8_t* source, size_t count, uint8_t* body)
        : layout(count),
          directory(body, layout),
          body(body),
          static_region(body + layout.static_offset),
          variable_region(static_region + layout.blocks * FULL_STATIC_NBYTES<D>),
          room_end(static_region + count * sizeof(typename D::Value)),
          source(source),
          static_part(static_region),
          variable_part(variable_region) {}

    size_t encode() {
        for (size_t tile = 0; tile < layout.tiles; ++tile) {
            const size_t first = tile * TILE_BLOCKS;
            const size_t last = smaller(first + TILE_BLOCKS, layout.blocks);
            for (size_t block = first; block < last; block += GROUP_BLOCKS) {
                encode_group(block, smaller(GROUP_BLOCKS, last - block));
            }
            store<uint64_t>(body + tile * TILE_ENTRY_NBYTES, static_part - static_region);
            store<uint64_t>(body + tile * TILE_ENTRY_NBYTES + 8, variable_part - variable_region);
        }
        std::memset(body + layout.directory_end(), 0, layout.static_offset - layout.directory_end());
        const size_t variable_nbytes = variable_part - variable_region;
        if (static_part != variable_region) std::memmove(static_part, variable_region, variable_nbytes);
        std::memcpy(static_part + variable_nbytes, source, layout.tail_nbytes);
        return static_part + variable_nbytes + layout.tail_nbytes - body;
    }

  private:
    const Layout<D> layout;
    const Directory<D, uint8_t> directory;
    uint8_t* const body;
    uint8_t* const static_region;
    uint8_t* const variable_region;
    const uint8_t* const room_end;

    const uint8_t* source;   // of the next block
    uint8_t* static_part;    // of the next block
    uint8_t* variable_part;  // of the next block

    alignas(64) uint8_t exponent[GROUP_BLOCKS][BLOCK_COUNT] = {};
    uint8_t base[GROUP_BLOCKS];
    typename Kernels::Encoding encoding[GROUP_BLOCKS];

    void encode_group(size_t first, size_t blocks) {
        Entry entry[GROUP_BLOCKS];
        uint8_t* static_parts[GROUP_BLOCKS];
        uint8_t* static_end = static_part;
        for (size_t i = 0; i < blocks; ++i) {
            const uint8_t* const values = source + i * BLOCK_NBYTES<D>;
            static_parts[i] = static_end;
            if (all_values_equal<D>(values)) {
                entry[i] = {0, load<typename D::Value>(values) ? CODE_CONSTANT : CODE_ZERO, 0};
            } else {
                entry[i] = {0, 0, Kernels::template split<D>(values, static_end, exponent[i])};
            }
            static_end += part_sizes<D>(entry[i]).static_nbytes;
        }
        Kernels::choose_bases(exponent, base, blocks);
        for (size_t i = 0; i < blocks; ++i) {
            if (is_coded(entry[i].code)) Kernels::encode_level_0(exponent[i], base[i], static_parts[i], encoding[i]);
        }
        for (size_t i = 0; i < blocks; ++i) {
            if (is_coded(entry[i].code)) Kernels::code_deeper_levels(encoding[i]);
        }
        for (size_t i = 0; i < blocks; ++i) {
            if (is_coded(entry[i].code)) {
                encode_coded(base[i], encoding[i], entry[i], static_end);
            } else if (entry[i].code == CODE_CONSTANT) {
                std::memcpy(variable_part, source, sizeof(typename D::Value));
            }
            directory.write(first + i, entry[i]);
            const PartSizes sizes = part_sizes<D>(entry[i]);
            source += BLOCK_NBYTES<D>;
            static_part += sizes.static_nbytes;
            variable_part += sizes.variable_nbytes;
        }
    }

    // Write a block's variable part and set its entry; the block becomes raw if it does not get smaller.
    void encode_coded(uint8_t block_base, const typename Kernels::Encoding& block, Entry& entry,
                      uint8_t*& static_end) {
        uint8_t scratch[VARIABLE_ROOM];
        const bool has_room = size_t(room_end - variable_part) >= VARIABLE_ROOM;
        const size_t nbytes = Kernels::write_deeper_levels(block, has_room ? variable_part : scratch);
        if (nbytes >= RAW_VARIABLE_NBYTES<D>) {
            encode_raw(entry, static_end);
            return;
        }
        if (!has_room) std::memcpy(variable_part, scratch, nbytes);
        entry.base = block_base;
        entry.code = uint8_t(nbytes / 2 + (block.symmetric ? CODE_SYMMETRIC : 0));
    }

    void encode_raw(Entry& entry, uint8_t*& static_end) {
        // The group's later static parts move up if this one was to leave out low planes.
        uint8_t* const part_end = static_part + part_sizes<D>(entry).static_nbytes;
        uint8_t* const raw_end = static_part + FULL_STATIC_NBYTES<D>;
        if (part_end != raw_end) std::memmove(raw_end, part_end, static_end - part_end);
        static_end += raw_end - part_end;
        std::memcpy(static_part, source, FULL_STATIC_NBYTES<D>);
        std::memcpy(variable_part, source + FULL_STATIC_NBYTES<D>, RAW_VARIABLE_NBYTES<D>);
        entry = {0, CODE_RAW, ALL_LOW_PLANES<D>};
    }
};

template <class Kernels, class D>
size_t encode_body(const uint8_t* source, size_t count, uint8_t* body) {
    const size_t raw_nbytes = count * sizeof(typename D::Value);
    if (count >= BLOCK_COUNT) {
        const size_t nbytes = Encoder<Kernels, D>(source, count, body).encode();
        if (nbytes < raw_nbytes) return nbytes;
    }
    std::memcpy(body, source, raw_nbytes);
    return raw_nbytes;
}

// Decode a body of which nothing is trusted. A tile's parts are read only when the sizes of all its blocks are known
// to end where its tile ends say, inside the regions.
template <class Kernels, class D>
class Decoder {
  public:
    Decoder(const uint8_t* body, size_t nbytes, uint8_t* target, size_t count)
        : layout(count), directory(body, layout), body(body), body_end(body + nbytes), target(target) {}

    Status decode() {
        const Status status = find_regions();
        if (status != OK) return status;
        for (size_t tile = 0; tile < layout.tiles; ++tile) {
            const size_t first = tile * TILE_BLOCKS;
            const size_t last = smaller(first + TILE_BLOCKS, layout.blocks);
            const Status tile_status = check_tile(tile, first, last);
            if (tile_status != OK) return tile_status;
            for (size_t block = first; block < last; block += GROUP_BLOCKS) {
                if (!decode_group(block, smaller(GROUP_BLOCKS, last - block))) return WRONG_BLOCK_SIZE;
            }
        }
        std::memcpy(target, body_end - layout.tail_nbytes, layout.tail_nbytes);
        return OK;
    }

  private:
    const Layout<D> layout;
    const Directory<D, const uint8_t> directory;
    const uint8_t* const body;
    const uint8_t* const body_end;

    uint8_t* target;               // of the next block
    const uint8_t* static_part;    // of the next block
    const uint8_t* variable_part;  // of the next block
    size_t static_nbytes = 0;
    size_t variable_nbytes = 0;
    size_t static_end = 0;    // of the tiles that are checked
    size_t variable_end = 0;  // of the tiles that are checked

    typename Kernels::Decoding decoding[GROUP_BLOCKS];

    Status find_regions() {
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
        static_part = body + layout.static_offset;
        variable_part = static_part + static_nbytes;
        return OK;
    }

    Status check_tile(size_t tile, size_t first, size_t last) {
        for (size_t block = first; block < last; ++block) {
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

    bool decode_group(size_t first, size_t blocks) {
        Entry entry[GROUP_BLOCKS];
        const uint8_t* static_parts[GROUP_BLOCKS];
        for (size_t i = 0; i < blocks; ++i) {
            entry[i] = directory.read(first + i);
            static_parts[i] = static_part;
            const PartSizes sizes = part_sizes<D>(entry[i]);
            if (is_coded(entry[i].code)) {
                if (!read_codes(entry[i], sizes.variable_nbytes, decoding[i])) return false;
            } else {
                decode_special(entry[i], target + i * BLOCK_NBYTES<D>);
            }
            static_part += sizes.static_nbytes;
            variable_part += sizes.variable_nbytes;
        }
        for (size_t i = 0; i < blocks; ++i) {
            if (is_coded(entry[i].code)) Kernels::decode_deeper_levels(decoding[i]);
        }
        for (size_t i = 0; i < blocks; ++i) {
            if (is_coded(entry[i].code)) {
                Kernels::template join<D>(entry[i], static_parts[i], decoding[i], target);
            }
            target += BLOCK_NBYTES<D>;
        }
        return true;
    }

    bool read_codes(Entry entry, size_t nbytes, typename Kernels::Decoding& block) {
        if (size_t(body_end - variable_part) >= VARIABLE_ROOM) {
            return Kernels::read_codes(entry, static_part, variable_part, nbytes, block);
        }
        uint8_t scratch[VARIABLE_ROOM] = {};
        std::memcpy(scratch, variable_part, nbytes);
        return Kernels::read_codes(entry, static_part, scratch, nbytes, block);
    }

    void decode_special(Entry entry, uint8_t* block_target) {
        if (entry.code == CODE_RAW) {
            std::memcpy(block_target, static_part, FULL_STATIC_NBYTES<D>);
            std::memcpy(block_target + FULL_STATIC_NBYTES<D>, variable_part, RAW_VARIABLE_NBYTES<D>);
        } else if (entry.code == CODE_ZERO) {
            std::memset(block_target, 0, BLOCK_NBYTES<D>);
        } else {
            const auto value = load<typename D::Value>(variable_part);
            for (size_t i = 0; i < BLOCK_COUNT; ++i) store(block_target + i * sizeof value, value);
        }
    }
};

inline size_t itemsize_of(int dtype) {
    switch (dtype) {
        case BFLOAT16: case FLOAT16: case INT16: case UINT16: return 2;
        case FLOAT32: case INT32: case UINT32: return 4;
        case FLOAT64: case INT64: case UINT64: return 8;
        default: return 1;
    }
}

template <class Kernels>
size_t encode_body_of(int dtype, const uint8_t* source, size_t count, uint8_t* body) {
    switch (dtype) {
        case BFLOAT16: return encode_body<Kernels, Bfloat16>(source, count, body);
        case FLOAT16: return encode_body<Kernels, Float16>(source, count, body);
        case FLOAT32: return encode_body<Kernels, Float32>(source, count, body);
    }
    const size_t raw_nbytes = count * itemsize_of(dtype);
    std::memcpy(body, source, raw_nbytes);
    return raw_nbytes;
}

template <class Kernels>
Status decode_body_of(int dtype, const uint8_t* body, size_t nbytes, uint8_t* target, size_t count) {
    switch (dtype) {
        case BFLOAT16: return Decoder<Kernels, Bfloat16>(body, nbytes, target, count).decode();
        case FLOAT16: return Decoder<Kernels, Float16>(body, nbytes, target, count).decode();
        case FLOAT32: return Decoder<Kernels, Float32>(body, nbytes, target, count).decode();
    }
    return NOT_CODED;
}
