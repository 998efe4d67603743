// Tables by the distance of an exponent below its block's base, b - E (mod 256). Include it inside an anonymous
// namespace.
//
// An entry for distance d has the index d + DISTANCE_BIAS, or 15 if that is more. It holds the codes of both deeper
// levels, one bit for each of these planes:
enum DeeperPlane { FIRST_1, SECOND_1, DEEPER_1, FIRST_2, SECOND_2, DEEPER_2, DEEPER_PLANES };
constexpr int DISTANCE_BIAS = 2;

constexpr uint8_t deeper_codes_at(int index, int table) {
    int code[3] = {DEEPER, DEEPER, DEEPER};
    for (int level = 1; level < 3; ++level) {
        for (int c = 0; c < 3; ++c) {
            if (DISTANCE_BIAS - OFFSETS[table][level][c] == index) code[level] = c;
        }
    }
    const bool deeper_1 = code[1] == DEEPER;
    const bool deeper_2 = deeper_1 && code[2] == DEEPER;
    // Distance 0 stays in level 0, but fills the unused ends of vectors, whose bits shall be zero.
    if (index == DISTANCE_BIAS) return 0;
    return uint8_t(code[1] << FIRST_1 | deeper_1 << DEEPER_1 | (deeper_1 ? code[2] << FIRST_2 : 0) |
                   deeper_2 << DEEPER_2);
}

// The refinement of a guess compares how often o = -3, -2, 0 and 1 occur. Entry o + 3 holds two votes, each plus one:
// in the low four bits whether the value speaks for moving down, in the high ones for moving up.
constexpr uint8_t base_votes_at(int index) {
    const int o = index - 3;
    const int down = o == -3 ? 2 : o == 0 ? 0 : 1;
    const int up = o == 1 ? 2 : o == -2 ? 0 : 1;
    return uint8_t(up << 4 | down);
}
