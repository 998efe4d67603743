// Bodies that nothing is known of. All implementations must refuse the same ones with the same status, decode the
// others to the same values, and stay inside their buffers. What is decoded is encoded and decoded again.
//
// An input is the dtype's number, the count of values (u16), an offset for the buffers, and the body.

#include "body.hpp"

#include <algorithm>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using fuzz::Body;
using fuzz::Bytes;
using fuzz::Exact;
using fuzz::Implementation;
using fuzz::Type;
using fuzz::accumulator_itemsize;
using fuzz::expect;
using fuzz::expect_equal;

constexpr size_t PREFIX_NBYTES = 4;
// A little more than two tiles.
constexpr size_t MAX_COUNT = (2 * zipccl::TILE_BLOCKS + 3) * zipccl::BLOCK_COUNT;

const Type& type_of(const uint8_t* data) { return fuzz::TYPES[data[0] % fuzz::TYPE_COUNT]; }
size_t count_of(const uint8_t* data) { return (data[1] | data[2] << 8) % MAX_COUNT; }

// How many bodies came, and how many of them were decoded; told at the end.
struct Tally {
    size_t bodies = 0;
    size_t decoded = 0;
    ~Tally() { std::fprintf(stderr, "# decoded %zu of %zu bodies\n", decoded, bodies); }
} tally;

// Decoding into an accumulator must do what decoding and accumulating do, and refuse what decoding refuses.
void check_decode_reduce(const Type& type, const Exact& body, size_t count, int op, const Exact& values, int status) {
    const size_t nbytes = count * accumulator_itemsize(type);
    for (const Implementation* each : fuzz::implementations()) {
        const Exact found(nbytes, op, 0x40);  // 3.0039 as float32, 32.5 as float64
        const int found_status = each->decode_reduce(type.code, op, body.data(), body.size(), found.data(), count,
                                                     fuzz::threads_of(each));
        expect(found_status == status, "%s: decode_reduce has status %d, decode_body %d", each->name, found_status,
               status);
        if (status != zipccl::OK) continue;
        const Exact expected(nbytes, op, 0x40);
        each->accumulate(type.code, op, values.data(), expected.data(), count);
        fuzz::expect_equal_accumulators(type, found, expected, each->name, "decode_reduce");
    }
}

// Some well-formed body for a changed head.
Bytes make_input(const Type& type, size_t type_number, fuzz::Random& random) {
    Body body;
    const bool mostly_zero = random.one_in(16);
    const size_t few = random.one_in(2) ? 4 : 12;
    const size_t blocks = random.below(mostly_zero ? MAX_COUNT / zipccl::BLOCK_COUNT : few);
    for (size_t i = 0; i < blocks; ++i) {
        body.blocks.push_back(mostly_zero && !random.one_in(16) ? fuzz::Block() : fuzz::make_block(type, random));
    }
    const size_t tail = random.one_in(2) ? random.below(zipccl::BLOCK_COUNT) : 0;
    for (size_t i = 0; i < tail * type.itemsize; ++i) body.tail.push_back(random.byte());
    const size_t count = blocks * zipccl::BLOCK_COUNT + tail;
    Bytes input = {uint8_t(type_number), uint8_t(count), uint8_t(count >> 8), random.byte()};
    const Bytes serialized = fuzz::serialize(type, body);
    input.insert(input.end(), serialized.begin(), serialized.end());
    return input;
}

// Change blocks of a body that can be taken apart, and put it together with fitting or nearly fitting tile ends.
Bytes alter_input(const uint8_t* data, size_t size, fuzz::Random& random) {
    const Type& type = type_of(data);
    Body body;
    if (!fuzz::parse(type, data + PREFIX_NBYTES, size - PREFIX_NBYTES, count_of(data), body)) return {};
    std::vector<fuzz::Block>& blocks = body.blocks;
    for (size_t changes = 1 + random.below(3); changes; --changes) {
        const size_t here = random.below(blocks.size());
        switch (random.below(16)) {
            case 0:
                blocks.insert(blocks.begin() + here, fuzz::make_block(type, random));
                break;
            case 1:
            case 2:
                if (!blocks.empty()) blocks.erase(blocks.begin() + here);
                break;
            case 3:
                if (!blocks.empty()) blocks.push_back(blocks[here]);
                break;
            default:
                if (!blocks.empty()) fuzz::alter_block(type, blocks[here], random);
        }
    }
    const size_t count = blocks.size() * zipccl::BLOCK_COUNT + body.tail.size() / type.itemsize;
    if (count >= MAX_COUNT) return {};
    Bytes input = {data[0], uint8_t(count), uint8_t(count >> 8), data[3]};
    Bytes serialized = fuzz::serialize(type, body);
    if (random.one_in(8) && !serialized.empty()) {
        const size_t head = fuzz::static_offset(type, blocks.size());
        const size_t end = head && random.one_in(2) ? head : serialized.size();
        serialized[random.below(end)] ^= uint8_t(1 << random.below(8));
    }
    if (random.one_in(16)) {
        const size_t fewer = std::min<size_t>(2, serialized.size());
        serialized.resize(serialized.size() - fewer + random.below(5));
    }
    input.insert(input.end(), serialized.begin(), serialized.end());
    return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < PREFIX_NBYTES) return -1;
    const Type& type = type_of(data);
    const size_t count = count_of(data);
    const size_t offset = data[3] % 64;
    const size_t nbytes = size - PREFIX_NBYTES;
    const Exact body(data + PREFIX_NBYTES, nbytes, offset);
    std::unique_ptr<Exact> values;
    int first_status = zipccl::OK;
    uint8_t filler = 0x55;
    for (const Implementation* each : fuzz::implementations()) {
        auto target = std::make_unique<Exact>(count * type.itemsize, data[3] / 64, filler++);
        const int status = each->decode_body(type.code, body.data(), nbytes, target->data(), count,
                                              fuzz::threads_of(each));
        if (!values) {
            first_status = status;
            values = std::move(target);
            continue;
        }
        expect(status == first_status, "%s: status %d for %zu bytes for %zu values of %s; another one's is %d",
               each->name, status, nbytes, count, type.name, first_status);
        if (status == zipccl::OK) {
            expect_equal(target->data(), values->data(), values->size(), each->name, "decoding");
        }
    }
    // One body in eight, because it costs as much as all else.
    if (data[3] % 8 == 0) check_decode_reduce(type, body, count, data[3] / 8 % 5, *values, first_status);
    expect_equal(body.data(), data + PREFIX_NBYTES, nbytes, "all", "the body after decoding");
    ++tally.bodies;
    tally.decoded += first_status == zipccl::OK;
    if (first_status == zipccl::OK) {
        fuzz::check_round_trip(type, *values, count, fuzz::body_nbytes_bound(type, count), offset);
    }
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    fuzz::Random random(seed);
    if (size < PREFIX_NBYTES || random.one_in(5)) return LLVMFuzzerMutate(data, size, max_size);
    Bytes input = random.one_in(16) ? make_input(type_of(data), data[0], random) : alter_input(data, size, random);
    if (input.empty()) input = make_input(type_of(data), data[0], random);
    if (input.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, input.data(), input.size());
    return input.size();
}
