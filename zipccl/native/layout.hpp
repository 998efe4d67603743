// The parts of a body in the blocks layout, and the sizes that a directory entry tells.
//
// Include it, and the other headers that say so, inside an anonymous namespace of one instruction set's file, so that
// no two files share its code.

constexpr size_t GROUP_BLOCKS = 8;

struct Entry {
    uint8_t code;
    uint8_t base;
    uint8_t mask;
};

template <class D>
constexpr size_t ITEMSIZE = sizeof(typename D::Value);
template <class D>
constexpr size_t BLOCK_NBYTES = BLOCK_COUNT * ITEMSIZE<D>;
template <class D>
constexpr size_t RAW_VARIABLE_NBYTES = BLOCK_NBYTES<D> - D::FULL_STATIC_NBYTES;
template <class D>
constexpr size_t CONSTANT_NBYTES = ITEMSIZE<D> + ITEMSIZE<D> % 2;
template <class D>
constexpr uint8_t ALL_LOW_PLANES = (1 << D::LOW_PLANES) - 1;

// A block's variable part with nothing left out, and what vectors may reach past its end: all of this may be read or
// overwritten where a part begins.
template <class D>
constexpr size_t VARIABLE_ROOM = ORIGIN_NBYTES + 1 + BIT_PLANE_NBYTES + D::REST_NBYTES + 3 * (BLOCK_COUNT / 4) +
                                 BLOCK_COUNT + D::LOW_BITS * BIT_PLANE_NBYTES + 128;

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
constexpr size_t round_up(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

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
          tail_nbytes(count % BLOCK_COUNT * ITEMSIZE<D>),
          directory_offset(tiles * TILE_ENTRY_NBYTES),
          static_offset(round_up(directory_end(), ALIGNMENT)) {}

    size_t directory_end() const { return directory_offset + blocks * D::DIRECTORY_ENTRY_NBYTES; }
};

// The directory's arrays in a body; Byte is uint8_t or const uint8_t.
template <class D, class Byte>
struct Directory {
    Byte* code;
    Byte* base;
    Byte* mask;

    Directory(Byte* body, const Layout<D>& layout)
        : code(body + layout.directory_offset), base(code + layout.blocks), mask(base + layout.blocks) {}

    Entry read(size_t block) const {
        return {code[block], D::IS_FLOAT ? base[block] : uint8_t(0), D::LOW_PLANES ? mask[block] : uint8_t(0)};
    }

    void write(size_t block, Entry entry) const {
        code[block] = entry.code;
        if (D::IS_FLOAT) base[block] = entry.base;
        if (D::LOW_PLANES) mask[block] = entry.mask;
    }
};

inline bool is_coded(uint8_t code) { return code < CODE_RAW; }
inline bool is_sparse(uint8_t code) { return code >= CODE_SPARSE; }
inline size_t coded_variable_nbytes(uint8_t code) { return 2 * size_t(code & ((1 << TABLE_SHIFT) - 1)); }

// How many planes stand one behind the other: planes of bytes, then planes of bits.
struct Planes {
    int bytes;
    int bits;

    size_t nbytes(size_t count) const { return bytes * count + bits * ((count + 7) / 8); }
};

template <class D>
constexpr Planes REST_PLANES = {D::REST_BITS == 8, D::REST_BITS == 8 ? 0 : D::REST_BITS};

template <class D>
inline Planes low_planes(uint8_t mask) {
    const int bytes = D::LOW_BYTES ? __builtin_popcount(mask & ((1 << D::LOW_BYTES) - 1)) : 0;
    const int groups = D::GROUPS ? __builtin_popcount(mask >> D::LOW_BYTES) : 0;
    return {bytes, groups * D::GROUP_BITS};
}

struct PartSizes {
    size_t static_nbytes;
    size_t variable_nbytes;
};

template <class D>
inline PartSizes part_sizes(Entry entry) {
    if constexpr (D::IS_FLOAT) {
        if (is_coded(entry.code)) {
            return {D::CODED_STATIC_NBYTES + low_planes<D>(entry.mask).nbytes(BLOCK_COUNT),
                    coded_variable_nbytes(entry.code)};
        }
        if (is_sparse(entry.code)) return {0, entry.base * ITEMSIZE<D>};
    }
    if (entry.code == CODE_RAW) return {D::FULL_STATIC_NBYTES, RAW_VARIABLE_NBYTES<D>};
    return {0, entry.code == CODE_CONSTANT ? CONSTANT_NBYTES<D> : 0};
}

template <class D>
inline bool is_valid(Entry entry) {
    if constexpr (D::IS_FLOAT) {
        const bool good_mask = entry.mask <= ALL_LOW_PLANES<D>;
        if (is_coded(entry.code)) return coded_variable_nbytes(entry.code) < RAW_VARIABLE_NBYTES<D> && good_mask;
        if (is_sparse(entry.code)) return entry.code < CODE_SPARSE + TABLES && good_mask;
    }
    if (entry.code == CODE_RAW) return entry.mask == ALL_LOW_PLANES<D>;
    return (entry.code == CODE_ZERO || entry.code == CODE_CONSTANT) && entry.mask == 0;
}
