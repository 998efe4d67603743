// The blocks layout as zipccl/codec/wire.py draws it, written down once more for the fuzz targets: bodies are taken
// apart into blocks, altered and put together again, so that most of what a decoder gets is nearly right.

#pragma once

#include <cstdint>
#include <vector>

#include "fuzz.hpp"

namespace fuzz {

using Bytes = std::vector<uint8_t>;

// Numbers from a seed (xorshift64*).
class Random {
  public:
    explicit Random(uint64_t seed) : state(seed * 2 + 1) {}

    uint64_t bits() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545F4914F6CDD1D;
    }
    size_t below(size_t end) { return (bits() >> 32) * end >> 32; }
    bool one_in(size_t times) { return below(times) == 0; }
    uint8_t byte() { return uint8_t(bits() >> 32); }

  private:
    uint64_t state;
};

constexpr uint8_t CODE_RAW = 192;
constexpr uint8_t CODE_ZERO = 193;
constexpr uint8_t CODE_CONSTANT = 194;
constexpr uint8_t CODE_SPARSE = 196;
constexpr size_t TABLE_COUNT = 3;
constexpr size_t MAX_CODED_VARIABLE_NBYTES = 126;
constexpr size_t MAX_SPARSE_UNITS = 255;
constexpr size_t PLANE_NBYTES = zipccl::BLOCK_COUNT / 8;

struct Block {
    uint8_t code = CODE_ZERO;
    uint8_t base = 0;
    uint8_t mask = 0;
    Bytes static_part;
    Bytes variable_part;
};

struct Body {
    std::vector<Block> blocks;
    Bytes tail;
};

int rest_bits(const Type& type);
std::vector<int> low_planes(const Type& type);  // the bits of each
size_t directory_entry_nbytes(const Type& type);
size_t static_offset(const Type& type, size_t blocks);

// As body_nbytes_bound in zipccl/codec/wire.py.
size_t body_nbytes_bound(const Type& type, size_t count);

// The sizes of a block's parts, as its directory entry tells; whether the entry is valid does not matter.
size_t static_nbytes(const Type& type, const Block& block);
size_t variable_nbytes(const Type& type, const Block& block);

// Take a body apart as its directory tells; return false if it is too short.
bool parse(const Type& type, const uint8_t* body, size_t nbytes, size_t count, Body& parsed);

// Put a body together, with the tile ends that its directory tells.
Bytes serialize(const Type& type, const Body& body);

// A valid block of random kind and content.
Block make_block(const Type& type, Random& random);

// Change something about a block; usually so that it stays valid.
void alter_block(const Type& type, Block& block, Random& random);

}  // namespace fuzz
