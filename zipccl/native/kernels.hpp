// What the coding of blocks asks of an instruction set, and the sparse blocks' planes, which are the same for all.
// Include it inside an anonymous namespace of one instruction set's file, before that file's class Kernels.
//
// Each step is done for a group of blocks before the next step, because then the blocks' work overlaps in the
// processor. To encode:
//
//     void split<D>(source, static_part, exponent, split)
//         Write the rests and, packed, the low planes that are not zero into the static part, whose whole room may be
//         overwritten; write the exponents; set all of split.
//     void guess_bases(exponents, bases), void refine_bases(exponents, bases)
//         Make choose_base's first guess for all blocks of the group, which takes no notice of exponents that are
//         zero; improve it.
//     void encode_level_0(exponent, base, planes, encoding)
//         Write the two planes of level 0, and the values that reach level 1 into the encoding.
//     void choose_tables(encodings)
//         Choose the tables of all blocks of the group; those that were not encoded do not matter.
//     void code_deeper_levels(encoding)
//         Find the codes of the deeper levels.
//     uint8_t* write_deeper_levels(encoding, out)
//         Write them and the escapes; return their end.
//
// and to decode:
//
//     const uint8_t* read_codes(planes, base, table, deeper_levels, decoding)
//         Read the codes of all levels, whose level 0 are planes; return the end of the escapes.
//     void decode_deeper_levels(decoding)
//         Find the exponents of the values that reach level 1.
//     void join<D>(parts, decoding, target), void join_sparse<D>(parts, decoding, present, target)
//         Decode level 0 and write the values; of a sparse block, only values that are present have an exponent.
//
// and for both, of sparse blocks:
//
//     void compact_bytes(present, bytes, out), uint64_t extract(bits, present)
//         Bring together what stands where present has a one; what is behind does not matter of bytes, and is zero of
//         bits.
//     void expand_bytes(present, bytes, out), uint64_t deposit(bits, present)
//         Undo that; what is not present is zero.
//     void fill_end(bytes, count, value)
//         Set what stands behind the first count of a block's bytes.
//
// Kernels::Encoding and Kernels::Decoding are what the steps leave for the next.

struct Split {
    int count;        // of values that have a bit set
    Bits present;     // these values; arbitrary if they are too many for a sparse block
    uint16_t origin;
    uint8_t mask;     // low planes that are not zero
    bool far_apart;   // an exponent is not among the 256 that the origin leaves: nothing else is set
};

// A block's parts in a payload, and what its directory entry and variable part say about them.
struct Parts {
    const uint8_t* planes;  // as in the static part
    uint16_t origin;
    uint8_t mask;
};

template <class Kernels>
inline void compact_bits(const Bits& present, const uint8_t* bits, uint8_t* out) {
    Bits compact = {};
    int count = 0;
    for (int w = 0; w < WORDS; ++w) {
        append_bits(compact, count, Kernels::extract(load<uint64_t>(bits + 8 * w), present.word[w]));
        count += __builtin_popcountll(present.word[w]);
    }
    store(out, compact);
}

template <class Kernels>
inline void expand_bits(const Bits& present, const Bits& bits, uint8_t* out) {
    int count = 0;
    for (int w = 0; w < WORDS; ++w) {
        store(out + 8 * w, Kernels::deposit(bits_from(bits, count), present.word[w]));
        count += __builtin_popcountll(present.word[w]);
    }
}

// Compact planes that stand as in a coded block's static part; return the end of the compact ones.
template <class Kernels>
inline uint8_t* compact_planes(const Bits& present, int count, Planes planes, const uint8_t* from, uint8_t* to) {
    for (int i = 0; i < planes.bytes; ++i, from += BYTE_PLANE_NBYTES, to += count) {
        Kernels::compact_bytes(present, from, to);
    }
    for (int i = 0; i < planes.bits; ++i, from += BIT_PLANE_NBYTES, to += (count + 7) / 8) {
        compact_bits<Kernels>(present, from, to);
    }
    return to;
}

// Undo compact_planes; return the end of the compact planes.
template <class Kernels>
inline const uint8_t* expand_planes(const Bits& present, int count, Planes planes, const uint8_t* from, uint8_t* to) {
    for (int i = 0; i < planes.bytes; ++i, from += count, to += BYTE_PLANE_NBYTES) {
        Kernels::expand_bytes(present, from, to);
    }
    for (int i = 0; i < planes.bits; ++i, from += (count + 7) / 8, to += BIT_PLANE_NBYTES) {
        expand_bits<Kernels>(present, load<Bits>(from), to);
    }
    return from;
}

// Write level 0 of a sparse block, which are planes, in rows; return their end.
inline uint8_t* write_level_0_rows(const uint8_t* planes, int count, uint8_t* out) {
    for (int start = 0; start < count; start += 64) {
        const uint8_t* const first = planes + start / 8;
        write_rows({load<uint64_t>(first), load<uint64_t>(first + BIT_PLANE_NBYTES)}, count_from(start, count),
                   out + rows_nbytes(start));
    }
    return out + rows_nbytes(count);
}

// Undo write_level_0_rows and expand the planes; return the rows' end.
template <class Kernels>
inline const uint8_t* read_level_0_rows(const Bits& present, int count, const uint8_t* rows, uint8_t* planes) {
    Bits first = {};
    Bits second = {};
    for (int start = 0; start < count; start += 64) {
        const Codes codes = read_rows(rows + rows_nbytes(start), count_from(start, count));
        first.word[start / 64] = codes.first;
        second.word[start / 64] = codes.second;
    }
    expand_bits<Kernels>(present, first, planes);
    expand_bits<Kernels>(present, second, planes + BIT_PLANE_NBYTES);
    return rows + rows_nbytes(count);
}
