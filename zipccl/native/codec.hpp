// What the parts of the native codec share: the wire format's constants, and what an implementation offers.
//
// The format is specified in zipccl/codec/wire.py; the names here are the same. This header declares no inline
// functions, so that nothing compiled for one instruction set can be linked into code for another.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The native codec is for little-endian machines; elsewhere zipccl uses the reference codec."
#endif

namespace zipccl {

using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr size_t BLOCK_COUNT = 256;
constexpr size_t TILE_BLOCKS = 64;
constexpr size_t TILE_ENTRY_NBYTES = 16;
constexpr size_t ALIGNMENT = 16;

constexpr size_t REST_NBYTES = BLOCK_COUNT;
constexpr size_t LEVEL_0_PLANE_NBYTES = BLOCK_COUNT / 8;
constexpr size_t CODED_STATIC_NBYTES = REST_NBYTES + 2 * LEVEL_0_PLANE_NBYTES;

constexpr uint8_t CODE_RAW = 96;
constexpr uint8_t CODE_ZERO = 97;
constexpr uint8_t CODE_CONSTANT = 98;
constexpr uint8_t CODE_SYMMETRIC = 128;

constexpr uint8_t DEEPER = 3;
constexpr int OFFSETS[2][3][3] = {{{0, -1, -2}, {1, -3, -4}, {-5, -6, -7}},   // skewed
                                  {{0, -1, -2}, {1, 2, -3}, {-4, -5, -6}}};  // symmetric

enum DType : int {
    BFLOAT16 = 1,
    FLOAT16 = 2,
    FLOAT32 = 3,
    FLOAT64 = 4,
    FLOAT8_E4M3FN = 5,
    FLOAT8_E5M2 = 6,
    BOOL = 16,
    INT8 = 17,
    UINT8 = 18,
    INT16 = 19,
    UINT16 = 20,
    INT32 = 21,
    UINT32 = 22,
    INT64 = 23,
    UINT64 = 24,
};

// The dtypes that are coded in blocks. All low planes of one dtype have the same size.
struct Bfloat16 {
    using Value = uint16_t;
    static constexpr size_t LOW_PLANES = 0;
    static constexpr size_t LOW_PLANE_NBYTES = 0;
};
struct Float16 {
    using Value = uint16_t;
    static constexpr size_t LOW_PLANES = 3;
    static constexpr size_t LOW_PLANE_NBYTES = BLOCK_COUNT / 8;
};
struct Float32 {
    using Value = uint32_t;
    static constexpr size_t LOW_PLANES = 2;
    static constexpr size_t LOW_PLANE_NBYTES = BLOCK_COUNT;
};

// As in zipccl/codec/base.py.
enum Op : int { SUM, PROD, MIN, MAX };

// Why decode_body refused; zipccl/codec/native.py has the words.
enum Status : int {
    OK,
    NOT_CODED,            // the dtype has no blocks layout
    ENDS_IN_DIRECTORY,    // the body is shorter than its tile ends and directory
    WRONG_SIZE,           // the body's size is not what the last tile's ends tell
    BAD_ENTRY,            // a directory entry that no encoder writes
    WRONG_TILE_END,       // a tile's ends differ from the directory's sizes
    WRONG_BLOCK_SIZE,     // a block's codes take another size than its directory entry tells
};

// One instruction set's codec; the functions are those of the Codec protocol in zipccl/codec/base.py.
struct Implementation {
    const char* name;
    bool (*supported)();
    size_t (*encode_body)(int dtype, const uint8_t* source, size_t count, uint8_t* body);
    Status (*decode_body)(int dtype, const uint8_t* body, size_t nbytes, uint8_t* target, size_t count);
    void (*widen)(int dtype, const uint8_t* source, uint8_t* accumulator, size_t count);
    void (*accumulate)(int dtype, int op, const uint8_t* source, uint8_t* accumulator, size_t count);
    void (*pack)(int dtype, const uint8_t* accumulator, uint8_t* target, size_t count, uint64_t divisor);
};

extern const Implementation portable;
#if defined(__x86_64__)
extern const Implementation avx512;
#endif

// Return the implementations, best first, ended by a null pointer; some may not be supported by this machine.
const Implementation* const* implementations();

}  // namespace zipccl
