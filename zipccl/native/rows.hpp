// One bit for each of a block's values, and codes in rows of 32. Include it inside an anonymous namespace, after
// uint64_t first_bits(bits, count), which keeps the lowest count bits, 64 at most.

constexpr int WORDS = BLOCK_COUNT / 64;

struct Bits {
    uint64_t word[WORDS];

    int count() const {
        int ones = 0;
        for (uint64_t each : word) ones += __builtin_popcountll(each);
        return ones;
    }
};

// Put bits that are zero from 256 - count on behind the first count ones of a sequence.
INLINE void append_bits(Bits& sequence, int count, uint64_t bits) {
    if (count / 64 < WORDS) sequence.word[count / 64] |= bits << count % 64;
    if (count / 64 + 1 < WORDS) sequence.word[count / 64 + 1] |= bits >> 1 >> (63 - count % 64);
}

// Return 64 bits of a sequence, from start on; behind its end are zeros.
INLINE uint64_t bits_from(const Bits& sequence, int start) {
    const uint64_t low = start / 64 < WORDS ? sequence.word[start / 64] >> start % 64 : 0;
    const uint64_t high = start / 64 + 1 < WORDS ? sequence.word[start / 64 + 1] << 1 << (63 - start % 64) : 0;
    return low | high;
}

// One level's codes of up to 64 values: bit i is value i's.
struct Codes {
    uint64_t first;
    uint64_t second;

    uint64_t deeper() const { return first & second; }
};

// How many values of a sequence fall into its 64 from start on.
INLINE int count_from(int start, int count) {
    return count < start ? 0 : count < start + 64 ? count - start : 64;
}

INLINE int rows_nbytes(int count) { return (count + 3) / 4; }

// Write up to 64 codes, whose bits are zero from count on, in rows: up to 16 bytes are written.
INLINE void write_rows(Codes codes, int count, uint8_t* out) {
    if (count <= 32) return store(out, codes.first | codes.second << count);
    store<uint64_t>(out, uint32_t(codes.first) | codes.second << 32);
    store<uint64_t>(out + 8, codes.first >> 32 | codes.second >> 32 << (count - 32));
}

// Undo write_rows; 16 bytes are read. There is no branch: counts around 32 and 64 are the usual ones.
INLINE Codes read_rows(const uint8_t* rows, unsigned count) {
    const unsigned in_row_0 = count < 32 ? count : 32;
    const unsigned in_row_1 = count - in_row_0;
    const uint64_t row_0 = load<uint64_t>(rows);
    const uint64_t row_1 = load<uint64_t>(rows + 8);
    return {first_bits(row_0, in_row_0) | first_bits(row_1, in_row_1) << 32,
            first_bits(row_0 >> in_row_0, in_row_0) | first_bits(row_1 >> in_row_1, in_row_1) << 32};
}
