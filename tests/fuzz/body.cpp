#include "body.hpp"

#include <algorithm>

namespace fuzz {

namespace {

constexpr size_t BLOCK_COUNT = zipccl::BLOCK_COUNT;
constexpr uint8_t DEEPER = 3;

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
size_t align(size_t offset, size_t multiple) { return ceil_div(offset, multiple) * multiple; }

size_t block_nbytes(const Type& type) { return BLOCK_COUNT * type.itemsize; }
size_t coded_static_nbytes(const Type& type) { return (rest_bits(type) + 2) * PLANE_NBYTES; }
int low_bits(const Type& type) { return type.mantissa_bits - (rest_bits(type) - 1); }
size_t full_static_nbytes(const Type& type) {
    return type.is_float() ? coded_static_nbytes(type) + low_bits(type) * PLANE_NBYTES : block_nbytes(type);
}
size_t raw_variable_nbytes(const Type& type) { return block_nbytes(type) - full_static_nbytes(type); }
size_t origin_nbytes(const Type& type) { return type.exponent_bits > 8 ? 2 : 0; }
uint8_t all_planes(const Type& type) { return uint8_t((1 << low_planes(type).size()) - 1); }

bool is_coded(const Block& block) { return block.code < CODE_RAW; }
bool is_sparse(const Block& block) { return block.code >= CODE_SPARSE && block.code < CODE_SPARSE + TABLE_COUNT; }

size_t packed_nbytes(int bits, size_t count) { return bits == 8 ? count : bits * ceil_div(count, 8); }

size_t low_nbytes(const Type& type, uint8_t mask, size_t count) {
    size_t nbytes = 0;
    const std::vector<int> planes = low_planes(type);
    for (size_t i = 0; i < planes.size(); ++i) nbytes += mask >> i & 1 ? packed_nbytes(planes[i], count) : 0;
    return nbytes;
}

void append_random(Bytes& bytes, size_t nbytes, Random& random) {
    for (size_t i = 0; i < nbytes; ++i) bytes.push_back(random.byte());
}

// Append a level of codes of which about share / 256 are DEEPER; return how many are.
size_t append_level(Bytes& bytes, size_t count, size_t share, Random& random) {
    Bytes level(ceil_div(count, 4), 0);
    size_t deeper = 0;
    const auto set = [&](size_t bit) { level[bit / 8] |= uint8_t(1 << bit % 8); };
    for (size_t start = 0; start < count; start += 32) {
        const size_t row = std::min<size_t>(32, count - start);
        for (size_t i = 0; i < row; ++i) {
            const uint8_t code = random.below(256) < share ? DEEPER : uint8_t(random.below(3));
            deeper += code == DEEPER;
            if (code & 1) set(2 * start + i);
            if (code & 2) set(2 * start + row + i);
        }
    }
    // What is unused at the end should be zero, but no decoder looks.
    if (count % 4 && random.one_in(8)) level.back() |= uint8_t(random.byte() << 2 * (count % 4));
    bytes.insert(bytes.end(), level.begin(), level.end());
    return deeper;
}

// Append levels 1 and 2 and the escapes.
void append_deeper(Bytes& bytes, size_t reached, Random& random) {
    const size_t share = random.below(257);
    const size_t reached_2 = append_level(bytes, reached, share, random);
    const size_t escapes = append_level(bytes, reached_2, random.below(257), random);
    append_random(bytes, escapes, random);
}

void append_origin(Bytes& bytes, const Type& type, Random& random) {
    if (!origin_nbytes(type)) return;
    const size_t origin = random.one_in(4) ? random.below(1 << 16) : random.below(2) * random.below(1792);
    bytes.push_back(uint8_t(origin));
    bytes.push_back(uint8_t(origin >> 8));
}

bool make_coded(const Type& type, Block& block, Random& random) {
    block.base = random.byte();
    block.mask = uint8_t(random.below(all_planes(type) + 1));
    append_random(block.static_part, rest_bits(type) * PLANE_NBYTES, random);
    const size_t share = random.one_in(4) ? random.below(257) : random.below(64);
    Bytes planes(2 * PLANE_NBYTES, 0);
    size_t reached = 0;
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        const uint8_t code = random.below(256) < share ? DEEPER : uint8_t(random.below(3));
        reached += code == DEEPER;
        planes[i / 8] |= uint8_t((code & 1) << i % 8);
        planes[PLANE_NBYTES + i / 8] |= uint8_t((code >> 1) << i % 8);
    }
    block.static_part.insert(block.static_part.end(), planes.begin(), planes.end());
    append_random(block.static_part, low_nbytes(type, block.mask, BLOCK_COUNT), random);
    append_origin(block.variable_part, type, random);
    append_deeper(block.variable_part, reached, random);
    if (block.variable_part.size() % 2) block.variable_part.push_back(random.one_in(8) ? random.byte() : 0);
    const size_t nbytes = block.variable_part.size();
    block.code = uint8_t(random.below(TABLE_COUNT) << 6 | nbytes / 2);
    return nbytes <= std::min(MAX_CODED_VARIABLE_NBYTES, raw_variable_nbytes(type) - 1);
}

bool make_sparse(const Type& type, Block& block, Random& random) {
    block.mask = uint8_t(random.below(all_planes(type) + 1));
    block.code = uint8_t(CODE_SPARSE + random.below(TABLE_COUNT));
    append_origin(block.variable_part, type, random);
    block.variable_part.push_back(random.byte());
    Bytes present(PLANE_NBYTES, 0);
    const size_t share = random.below(257);
    size_t count = 0;
    for (size_t i = 0; i < BLOCK_COUNT; ++i) {
        const bool is_present = random.below(256) < share;
        count += is_present;
        present[i / 8] |= uint8_t(is_present << i % 8);
    }
    block.variable_part.insert(block.variable_part.end(), present.begin(), present.end());
    append_random(block.variable_part, packed_nbytes(rest_bits(type), count), random);
    const size_t reached = append_level(block.variable_part, count, random.below(random.one_in(4) ? 257 : 64), random);
    append_deeper(block.variable_part, reached, random);
    append_random(block.variable_part, low_nbytes(type, block.mask, count), random);
    block.variable_part.resize(align(block.variable_part.size(), type.itemsize), random.one_in(8) ? random.byte() : 0);
    const size_t units = block.variable_part.size() / type.itemsize;
    block.base = uint8_t(units);
    return units <= MAX_SPARSE_UNITS;
}

Block make_special(const Type& type, uint8_t code, Random& random) {
    Block block;
    block.code = code;
    if (code == CODE_RAW) block.mask = all_planes(type);
    append_random(block.static_part, static_nbytes(type, block), random);
    append_random(block.variable_part, variable_nbytes(type, block), random);
    return block;
}

// Give the parts the sizes that the entry tells.
void fit(const Type& type, Block& block, Random& random) {
    block.static_part.resize(static_nbytes(type, block), random.byte());
    block.variable_part.resize(variable_nbytes(type, block), random.byte());
}

void flip_bit(Bytes& bytes, Random& random) {
    if (!bytes.empty()) bytes[random.below(bytes.size())] ^= uint8_t(1 << random.below(8));
}

// Change codes of level 0, but not how many are DEEPER.
void alter_level_0(const Type& type, Block& block, Random& random) {
    if (!is_coded(block) || block.static_part.size() < coded_static_nbytes(type)) return;
    uint8_t* const planes = block.static_part.data() + rest_bits(type) * PLANE_NBYTES;
    const auto code_of = [&](size_t i) {
        return (planes[i / 8] >> i % 8 & 1) | (planes[PLANE_NBYTES + i / 8] >> i % 8 & 1) << 1;
    };
    const auto set = [&](size_t i, int code) {
        for (int bit = 0; bit < 2; ++bit) {
            uint8_t& byte = planes[bit * PLANE_NBYTES + i / 8];
            byte = uint8_t((byte & ~(1 << i % 8)) | (code >> bit & 1) << i % 8);
        }
    };
    const size_t a = random.below(BLOCK_COUNT);
    const size_t b = random.below(BLOCK_COUNT);
    const int code_of_a = code_of(a);
    set(a, code_of(b));
    set(b, code_of_a);
    if (code_of(a) != DEEPER) set(a, int(random.below(3)));
}

}  // namespace

size_t body_nbytes_bound(const Type& type, size_t count) {
    return static_offset(type, count / BLOCK_COUNT) + count * type.itemsize;
}

int rest_bits(const Type& type) { return std::min(type.mantissa_bits, 7) + 1; }

std::vector<int> low_planes(const Type& type) {
    if (!type.is_float()) return {};
    const int bits = low_bits(type);
    std::vector<int> planes(bits / 8, 8);
    if (!planes.empty() && bits % 8) planes.push_back(bits % 8);
    if (planes.empty()) planes.assign(bits, 1);
    return planes;
}

size_t directory_entry_nbytes(const Type& type) { return 1 + type.is_float() + !low_planes(type).empty(); }

size_t static_offset(const Type& type, size_t blocks) {
    const size_t tiles = ceil_div(blocks, zipccl::TILE_BLOCKS);
    return align(tiles * zipccl::TILE_ENTRY_NBYTES + blocks * directory_entry_nbytes(type), zipccl::ALIGNMENT);
}

size_t static_nbytes(const Type& type, const Block& block) {
    if (block.code == CODE_RAW) return full_static_nbytes(type);
    if (!is_coded(block) || !type.is_float()) return 0;
    return coded_static_nbytes(type) + low_nbytes(type, block.mask, BLOCK_COUNT);
}

size_t variable_nbytes(const Type& type, const Block& block) {
    if (block.code == CODE_RAW) return raw_variable_nbytes(type);
    if (block.code == CODE_CONSTANT) return align(type.itemsize, 2);
    if (!type.is_float()) return 0;
    if (is_sparse(block)) return block.base * type.itemsize;
    return is_coded(block) ? 2 * (block.code & 63) : 0;
}

bool parse(const Type& type, const uint8_t* body, size_t nbytes, size_t count, Body& parsed) {
    const size_t blocks = count / BLOCK_COUNT;
    const size_t directory = ceil_div(blocks, zipccl::TILE_BLOCKS) * zipccl::TILE_ENTRY_NBYTES;
    size_t position = static_offset(type, blocks);
    if (nbytes < position) return false;
    parsed.blocks.assign(blocks, Block());
    const size_t arrays = directory_entry_nbytes(type);
    for (size_t i = 0; i < blocks; ++i) {
        Block& block = parsed.blocks[i];
        block.code = body[directory + i];
        if (arrays > 1) block.base = body[directory + blocks + i];
        if (arrays > 2) block.mask = body[directory + 2 * blocks + i];
    }
    const auto take = [&](Bytes& part, size_t size) {
        if (size > nbytes - position) return false;
        part.assign(body + position, body + position + size);
        position += size;
        return true;
    };
    for (Block& block : parsed.blocks) {
        if (!take(block.static_part, static_nbytes(type, block))) return false;
    }
    for (Block& block : parsed.blocks) {
        if (!take(block.variable_part, variable_nbytes(type, block))) return false;
    }
    return take(parsed.tail, count % BLOCK_COUNT * type.itemsize);
}

Bytes serialize(const Type& type, const Body& body) {
    const size_t blocks = body.blocks.size();
    const size_t tiles = ceil_div(blocks, zipccl::TILE_BLOCKS);
    const size_t arrays = directory_entry_nbytes(type);
    Bytes bytes(static_offset(type, blocks), 0);
    uint64_t ends[2] = {0, 0};
    for (size_t i = 0; i < blocks; ++i) {
        const Block& block = body.blocks[i];
        uint8_t* const entry = bytes.data() + tiles * zipccl::TILE_ENTRY_NBYTES + i;
        entry[0] = block.code;
        if (arrays > 1) entry[blocks] = block.base;
        if (arrays > 2) entry[2 * blocks] = block.mask;
        ends[0] += block.static_part.size();
        ends[1] += block.variable_part.size();
        std::memcpy(bytes.data() + i / zipccl::TILE_BLOCKS * zipccl::TILE_ENTRY_NBYTES, ends, sizeof ends);
    }
    const auto append = [&](const Bytes& part) { bytes.insert(bytes.end(), part.begin(), part.end()); };
    for (const Block& block : body.blocks) append(block.static_part);
    for (const Block& block : body.blocks) append(block.variable_part);
    append(body.tail);
    return bytes;
}

Block make_block(const Type& type, Random& random) {
    constexpr uint8_t SPECIAL[] = {CODE_RAW, CODE_ZERO, CODE_CONSTANT};
    if (!type.is_float() || random.one_in(4)) return make_special(type, SPECIAL[random.below(3)], random);
    const bool sparse = random.one_in(2);
    for (int attempt = 0; attempt < 8; ++attempt) {
        Block block;
        if (sparse ? make_sparse(type, block, random) : make_coded(type, block, random)) return block;
    }
    return make_special(type, CODE_RAW, random);
}

void alter_block(const Type& type, Block& block, Random& random) {
    switch (random.below(8)) {
        case 0: block = make_block(type, random); return;
        case 1: flip_bit(block.static_part, random); return;
        case 2: flip_bit(block.variable_part, random); return;
        case 3: alter_level_0(type, block, random); return;
        case 4: block.code ^= uint8_t(1 << random.below(8)); break;
        case 5: block.base ^= uint8_t(1 << random.below(8)); break;
        case 6: block.mask ^= uint8_t(1 << random.below(8)); break;
        default: block.code = uint8_t(block.code + (random.one_in(2) ? 1 : -1)); break;
    }
    if (!random.one_in(4)) fit(type, block, random);
}

}  // namespace fuzz
