// Reductions of any bits. All implementations must give the same values, and the same accumulators but for NaNs' bits.
//
// An input is the dtype's number, the op, an offset for the buffers, the divisor (u32), and values: a third of the rest
// is widened, a third is accumulated, and a third is packed as if it were accumulators. What packs and encodes at once
// must give what packing and encoding give.

#include "body.hpp"

namespace {

using fuzz::Exact;
using fuzz::Implementation;
using fuzz::Type;
using fuzz::expect;
using fuzz::accumulator_itemsize;
using fuzz::expect_equal;
using fuzz::expect_equal_accumulators;

constexpr size_t PREFIX_NBYTES = 7;

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
    const int op = data[1] % 5;
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
        const Exact packed_at_once(packed_any.size(), data[2] / 64, 0x55);
        const Exact body(fuzz::body_nbytes_bound(type, any_count), offset, 0x55);
        const Exact body_at_once(body.size(), offset, 0x55);
        const size_t body_nbytes = each->encode_body(type.code, packed_any.data(), any_count, body.data(),
                                                     fuzz::threads_of(each));
        const size_t nbytes_at_once = each->pack_encode(type.code, any.data(), any_count, divisor,
                                                        packed_at_once.data(), body_at_once.data(), fuzz::threads_of(each));
        expect(nbytes_at_once == body_nbytes, "%s: pack_encode of %zu values of %s gives %zu bytes; expected %zu",
               each->name, any_count, type.name, nbytes_at_once, body_nbytes);
        expect_equal(packed_at_once.data(), packed_any.data(), packed_any.size(), each->name, "pack_encode's values");
        expect_equal(body_at_once.data(), body.data(), body_nbytes, each->name, "pack_encode's body");
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
