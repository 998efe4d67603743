// Values of many kinds. All implementations must encode them to the same body and decode it to the same values.
//
// An input is the dtype's number, an offset for the buffers, the count of values after the last block, and recipes of
// blocks.

#include "body.hpp"

namespace {

using fuzz::Bytes;
using fuzz::Exact;
using fuzz::Random;
using fuzz::Type;

constexpr size_t PREFIX_NBYTES = 3;
constexpr size_t MAX_BLOCKS = 2 * zipccl::TILE_BLOCKS + 3;

struct Recipe {
    uint8_t kind;         // 0: one value again and again; 1: any bits; else as the rest tells
    uint8_t exponent;     // most values' exponent field lies at or below it, as a share of the greatest one
    uint8_t spread;       // how far
    uint8_t zeros;        // share of zeros
    uint8_t outliers;     // share of values with any exponent
    uint8_t kept_bits;    // bits of the mantissa that are not zero, and whether they are the high ones
    uint8_t deviation;    // a second share of values a little above
    uint8_t seed;
};

void append(Bytes& values, const Type& type, uint64_t value) {
    for (size_t i = 0; i < type.itemsize; ++i) values.push_back(uint8_t(value >> 8 * i));
}

uint64_t exponent_of(const Recipe& recipe, uint64_t greatest, Random& random) {
    if (random.below(512) < recipe.outliers) return random.below(greatest + 1);
    uint64_t exponent = greatest * recipe.exponent / 255;
    if (random.below(1024) < recipe.deviation) return exponent + 1 + random.below(2);
    for (int i = 0; i < 16 && exponent && random.below(256) < recipe.spread; ++i) --exponent;
    return exponent;
}

uint64_t value_of(const Recipe& recipe, const Type& type, Random& random) {
    const uint64_t bits = random.bits();
    if (random.below(256) < recipe.zeros) return 0;
    if (recipe.kind == 1 || !type.is_float()) return bits;
    const int mantissa_bits = type.mantissa_bits;
    const int kept = recipe.kept_bits % 64 < mantissa_bits ? recipe.kept_bits % 64 : mantissa_bits;
    uint64_t mantissa = bits & ((uint64_t(1) << kept) - 1);
    if (recipe.kept_bits & 64) mantissa <<= mantissa_bits - kept;
    const uint64_t greatest = (uint64_t(1) << type.exponent_bits) - 1;
    const uint64_t exponent = exponent_of(recipe, greatest, random) & greatest;
    const uint64_t sign = bits >> 63;
    return sign << (type.exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < PREFIX_NBYTES) return -1;
    const Type& type = fuzz::TYPES[data[0] % fuzz::TYPE_COUNT];
    const size_t offset = data[1] % 64;
    Bytes content;
    const size_t blocks = (size - PREFIX_NBYTES) / sizeof(Recipe);
    if (blocks > MAX_BLOCKS) return -1;
    for (size_t block = 0; block < blocks; ++block) {
        Recipe recipe;
        std::memcpy(&recipe, data + PREFIX_NBYTES + block * sizeof recipe, sizeof recipe);
        Random random(recipe.seed);
        const uint64_t first = value_of(recipe, type, random);
        for (size_t i = 0; i < zipccl::BLOCK_COUNT; ++i) {
            append(content, type, recipe.kind == 0 ? first : value_of(recipe, type, random));
        }
    }
    Random random(data[2]);
    for (size_t i = 0; i < data[2] * type.itemsize; ++i) content.push_back(random.byte());
    const size_t count = content.size() / type.itemsize;
    const Exact values(content.data(), content.size(), data[1] / 64);
    fuzz::check_round_trip(type, values, count, fuzz::body_nbytes_bound(type, count), offset);
    fuzz::expect_equal(values.data(), content.data(), content.size(), "all", "the source after encoding");
    return 0;
}
