// A block's values to their exponents, rests and low planes, and back, in loops for the compiler's SIMD. Include it
// inside an anonymous namespace, after kernels.hpp and
//
//     uint64_t gather_plane(bytes, bit)
//         Gather one bit of each of 64 bytes.
//     void spread_plane(bits, bit, bytes)
//         Set that bit of 64 bytes, and no other, to those of a plane.

// A value's bits, split and put together again. Exponent fields are taken and given less the origin.
template <class D>
struct Value {
    using Word = typename D::Value;
    static constexpr int SIGN = 8 * sizeof(Word) - 1;
    static constexpr uint32_t FIELD_MASK = (1u << D::EXPONENT_BITS) - 1;
    static constexpr uint32_t REST_MASK = (1u << D::REST_BITS) - 1;

    static uint32_t field(Word value) { return uint32_t(value >> D::MANTISSA_BITS) & FIELD_MASK; }

    static uint8_t rest(Word value) {
        uint32_t high = uint32_t(value) << 1;
        if constexpr (D::LOW_BITS > 0) high = uint32_t(value >> (D::LOW_BITS - 1));
        return uint8_t((high & REST_MASK & ~1u) | uint32_t(value >> SIGN));
    }

    static Word join(uint32_t field, uint8_t rest) {
        const Word magnitude = Word(Word(field & FIELD_MASK) << D::MANTISSA_BITS | Word(rest >> 1) << D::LOW_BITS);
        return Word(Word(rest & 1u) << SIGN | magnitude);
    }
};

// Write one bit of each of a block's bytes as a plane; return its end.
inline uint8_t* write_bit_plane(const uint8_t* bytes, int bit, uint8_t* plane) {
    for (size_t i = 0; i < BLOCK_COUNT; i += 64) store(plane + i / 8, gather_plane(bytes + i, bit));
    return plane + BIT_PLANE_NBYTES;
}

// Set bytes to what planes that stand one behind the other hold from bit 0 on.
inline void read_bit_planes(const uint8_t* planes, int bits, uint8_t* bytes) {
    for (size_t i = 0; i < BLOCK_COUNT; i += 64) {
        spread_plane(load<uint64_t>(planes + i / 8), 0, bytes + i);
        for (int bit = 1; bit < bits; ++bit) {
            uint8_t more[64];
            spread_plane(load<uint64_t>(planes + bit * BIT_PLANE_NBYTES + i / 8), bit, more);
            for (size_t k = 0; k < 64; ++k) bytes[i + k] |= more[k];
        }
    }
}

// Write the low planes of values that are not zero; return which ones these are.
template <class D>
inline uint8_t write_low_planes(const typename D::Value (&values)[BLOCK_COUNT], uint8_t* planes) {
    uint8_t mask = 0;
    for (int plane = 0; plane < D::LOW_PLANES; ++plane) {
        const bool whole = plane < D::LOW_BYTES;
        const int first_bit = whole ? 8 * plane : 8 * D::LOW_BYTES + (plane - D::LOW_BYTES) * D::GROUP_BITS;
        uint8_t low[BLOCK_COUNT];
        uint8_t any = 0;
        for (size_t i = 0; i < BLOCK_COUNT; ++i) {
            low[i] = uint8_t(values[i] >> first_bit);
            any |= low[i];
        }
        if (!whole) any &= (1 << D::GROUP_BITS) - 1;
        if (!any) continue;
        mask |= uint8_t(1 << plane);
        if (whole) {
            std::memcpy(planes, low, sizeof low);
            planes += BYTE_PLANE_NBYTES;
        }
        for (int bit = 0; bit < D::GROUP_BITS && !whole; ++bit) planes = write_bit_plane(low, bit, planes);
    }
    return mask;
}

template <class D>
inline void add_low_planes(const uint8_t* planes, uint8_t mask, typename D::Value (&values)[BLOCK_COUNT]) {
    using Word = typename D::Value;
    for (int plane = 0; plane < D::LOW_PLANES; ++plane) {
        if (!(mask >> plane & 1)) continue;
        if (plane < D::LOW_BYTES) {
            for (size_t i = 0; i < BLOCK_COUNT; ++i) values[i] |= Word(Word(planes[i]) << 8 * plane);
            planes += BYTE_PLANE_NBYTES;
            continue;
        }
        const int first_bit = 8 * D::LOW_BYTES + (plane - D::LOW_BYTES) * D::GROUP_BITS;
        uint8_t low[BLOCK_COUNT];
        read_bit_planes(planes, D::GROUP_BITS, low);
        for (size_t i = 0; i < BLOCK_COUNT; ++i) values[i] |= Word(Word(low[i]) << first_bit);
        planes += D::GROUP_BITS * BIT_PLANE_NBYTES;
    }
}

template <class D>
bool find_origin(const typename D::Value (&values)[BLOCK_COUNT], uint32_t& origin) {
    uint32_t greatest = 0;
    uint32_t least = ~0u;  // of those that are not zero
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        const uint32_t field = Value<D>::field(values[i]);
        greatest = field > greatest ? field : greatest;
        least = field - 1 < least ? field - 1 : least;
    }
    origin = greatest > 255 ? greatest - 255 : 0;
    return least + 1 > origin || least == ~0u;
}

template <class D>
void find_present(const typename D::Value (&values)[BLOCK_COUNT], Split& split) {
    uint8_t zero[BLOCK_COUNT];
    int zeros = 0;
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        zero[i] = values[i] == 0;
        zeros += zero[i];
    }
    split.count = BLOCK_COUNT - zeros;
    if (zeros < MIN_SPARSE_ZEROS) return;
    for (int w = 0; w < WORDS; ++w) split.present.word[w] = ~gather_plane(zero + 64 * w, 0);
}

template <class D>
void split_values(const uint8_t* source, uint8_t* static_part, uint8_t* exponent, Split& split) {
    typename D::Value values[BLOCK_COUNT];  // local arrays, so that the compiler knows that they do not overlap
    uint8_t exponents[BLOCK_COUNT];
    uint8_t rests[BLOCK_COUNT];
    std::memcpy(values, source, sizeof values);
    uint32_t origin = 0;
    split.far_apart = D::HAS_ORIGIN && !find_origin<D>(values, origin);
    if (split.far_apart) return;
    split.origin = uint16_t(origin);
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        const uint32_t field = Value<D>::field(values[i]);
        exponents[i] = uint8_t(D::HAS_ORIGIN && field == 0 ? 0 : field - origin);
        rests[i] = Value<D>::rest(values[i]);
    }
    std::memcpy(exponent, exponents, sizeof exponents);
    if (D::REST_BITS == 8) {
        std::memcpy(static_part, rests, sizeof rests);
    } else {
        uint8_t* planes = static_part;
        for (int bit = 0; bit < D::REST_BITS; ++bit) planes = write_bit_plane(rests, bit, planes);
    }
    split.mask = write_low_planes<D>(values, static_part + D::CODED_STATIC_NBYTES);
    find_present<D>(values, split);
}

template <class D>
void join_parts(const Parts& parts, const uint8_t (&exponent)[BLOCK_COUNT], uint8_t* target) {
    uint8_t rest[BLOCK_COUNT];
    if (D::REST_BITS == 8) {
        std::memcpy(rest, parts.planes, sizeof rest);
    } else {
        read_bit_planes(parts.planes, D::REST_BITS, rest);
    }
    typename D::Value values[BLOCK_COUNT];
    const uint32_t origin = D::HAS_ORIGIN ? parts.origin : 0;
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        const uint32_t field = D::HAS_ORIGIN && exponent[i] == 0 ? 0 : exponent[i] + origin;
        values[i] = Value<D>::join(field, rest[i]);
    }
    add_low_planes<D>(parts.planes + D::CODED_STATIC_NBYTES, parts.mask, values);
    std::memcpy(target, values, sizeof values);
}
