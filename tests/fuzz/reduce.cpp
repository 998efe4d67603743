// Reductions of any bits. All implementations must give the same values, and the same accumulators but for NaNs' bits.
//
// An input is the dtype's number, the op, an offset for the buffers, the divisor (u32), and values: a third of the rest
// is widened, a third is accumulated, and a third is packed as if it were accumulators.

#include "fuzz.hpp"

namespace {

using fuzz::Exact;
using fuzz::Implementation;
using fuzz::Type;
using fuzz::expect;
using fuzz::expect_equal;

constexpr size_t PREFIX_NBYTES = 7;

// As accumulator_itemsize in zipccl/codec/base.py.
size_t accumulator_itemsize(const Type& type) { return type.is_float() && type.itemsize < 4 ? 4 : type.itemsize; }

template <class Float>
bool equal_or_nan(const uint8_t* a, const uint8_t* b) {
    Float value_a, value_b;
    std::memcpy(&value_a, a, sizeof value_a);
    std::memcpy(&value_b, b, sizeof value_b);
    return std::memcmp(a, b, sizeof(Float)) == 0 || (value_a != value_a && value_b != value_b);
}

void expect_equal_accumulators(const Type& type, const Exact& found, const Exact& expected, const char* name,
                               const char* what) {
    if (!type.is_float()) return expect_equal(found.data(), expected.data(), found.size(), name, what);
    const size_t itemsize = accumulator_itemsize(type);
    for (size_t i = 0; i < found.size(); i += itemsize) {
        const bool equal = itemsize == 8 ? equal_or_nan<double>(found.data() + i, expected.data() + i)
                                         : equal_or_nan<float>(found.data() + i, expected.data() + i);
        expect(equal, "%s: %s %s: value %zu of %zu differs", name, what, type.name, i / itemsize,
               found.size() / itemsize);
    }
}

struct Results {
    Exact widened;
    Exact accumulated;
    Exact packed;
    Exact packed_any;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < PREFIX_NBYTES) return -1;
    const Type& type = fuzz::TYPES[data[0] % fuzz::TYPE_COUNT];
    const int op = data[1] % 4;
    const size_t offset = data[2] % 64;
    uint32_t divisor;
    std::memcpy(&divisor, data + 3, sizeof divisor);
    divisor = divisor ? divisor : 1;
    const uint8_t* const rest = data + PREFIX_NBYTES;
    const size_t count = (size - PREFIX_NBYTES) / 3 / type.itemsize;
    const size_t nbytes = count * type.itemsize;
    const size_t any_count = nbytes / accumulator_itemsize(type);
    const Exact a(rest, nbytes, data[2] / 64);
    const Exact b(rest + nbytes, nbytes, offset);
    const Exact any(rest + 2 * nbytes, any_count * accumulator_itemsize(type), offset);

    std::unique_ptr<Results> first;
    for (const Implementation* each : fuzz::implementations()) {
        const Exact accumulator(count * accumulator_itemsize(type), offset, 0x55);
        const Exact packed(nbytes, offset, 0x55);
        const Exact packed_any(any_count * type.itemsize, offset, 0x55);
        each->widen(type.code, a.data(), accumulator.data(), count);
        const Exact widened(accumulator.data(), accumulator.size(), 0);
        each->accumulate(type.code, op, b.data(), accumulator.data(), count);
        each->pack(type.code, accumulator.data(), packed.data(), count, divisor);
        each->pack(type.code, any.data(), packed_any.data(), any_count, divisor);
        auto results = std::make_unique<Results>(Results{
            Exact(widened.data(), widened.size(), 0), Exact(accumulator.data(), accumulator.size(), 0),
            Exact(packed.data(), packed.size(), 0), Exact(packed_any.data(), packed_any.size(), 0)});
        if (!first) first = std::move(results);
        expect_equal_accumulators(type, widened, first->widened, each->name, "widening");
        expect_equal_accumulators(type, accumulator, first->accumulated, each->name, "accumulating");
        expect_equal(packed.data(), first->packed.data(), packed.size(), each->name, "packing");
        expect_equal(packed_any.data(), first->packed_any.data(), packed_any.size(), each->name, "packing any bits");
    }
    return 0;
}
