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

// For steps of every block, and for what is seldom done in the midst of them.
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

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

constexpr size_t BIT_PLANE_NBYTES = BLOCK_COUNT / 8;
constexpr size_t BYTE_PLANE_NBYTES = BLOCK_COUNT;
constexpr size_t ORIGIN_NBYTES = 2;

constexpr int TABLE_SHIFT = 6;
constexpr uint8_t CODE_RAW = 192;
constexpr uint8_t CODE_ZERO = 193;
constexpr uint8_t CODE_CONSTANT = 194;
constexpr uint8_t CODE_SPARSE = 196;
constexpr size_t MAX_CODED_VARIABLE_NBYTES = 2 * ((1 << TABLE_SHIFT) - 1);
constexpr size_t MAX_SPARSE_UNITS = 255;
constexpr int MIN_SPARSE_ZEROS = 16;

constexpr uint8_t DEEPER = 3;
enum Table : int { SKEWED, FALLING, SYMMETRIC };
constexpr int TABLES = 3;
constexpr int OFFSETS[TABLES][3][3] = {{{0, -1, -2}, {1, -3, -4}, {-5, -6, -7}},
                                       {{0, -1, -2}, {-3, -4, -5}, {1, -6, -7}},
                                       {{0, -1, -2}, {1, 2, -3}, {-4, -5, -6}}};

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

// What the coding of a float needs to know of it.
template <class V, int EXPONENT, int MANTISSA>
struct Float {
    using Value = V;
    static constexpr bool IS_FLOAT = true;
    static constexpr int EXPONENT_BITS = EXPONENT;
    static constexpr int MANTISSA_BITS = MANTISSA;
    static constexpr bool HAS_ORIGIN = EXPONENT > 8;
    static constexpr int REST_BITS = (MANTISSA < 7 ? MANTISSA : 7) + 1;
    static constexpr int LOW_BITS = MANTISSA - (REST_BITS - 1);
    // Low planes: first those of whole bytes; then the bits that are left, one group if there are such bytes.
    static constexpr int LOW_BYTES = LOW_BITS / 8;
    static constexpr int GROUP_BITS = LOW_BYTES ? LOW_BITS % 8 : LOW_BITS ? 1 : 0;
    static constexpr int GROUPS = GROUP_BITS ? LOW_BITS % 8 / GROUP_BITS : 0;
    static constexpr int LOW_PLANES = LOW_BYTES + GROUPS;
    static constexpr size_t DIRECTORY_ENTRY_NBYTES = LOW_PLANES ? 3 : 2;
    static constexpr size_t REST_NBYTES = REST_BITS * BIT_PLANE_NBYTES;
    static constexpr size_t CODED_STATIC_NBYTES = REST_NBYTES + 2 * BIT_PLANE_NBYTES;
    static constexpr size_t FULL_STATIC_NBYTES = CODED_STATIC_NBYTES + LOW_BITS * BIT_PLANE_NBYTES;
};

using Bfloat16 = Float<uint16_t, 8, 7>;
using Float16 = Float<uint16_t, 5, 10>;
using Float32 = Float<uint32_t, 8, 23>;
using Float64 = Float<uint64_t, 11, 52>;
using Float8E4M3fn = Float<uint8_t, 4, 3>;
using Float8E5M2 = Float<uint8_t, 5, 2>;

// An integer or bool, of which only zero and constant blocks are elided.
template <class V>
struct Whole {
    using Value = V;
    static constexpr bool IS_FLOAT = false;
    static constexpr int LOW_PLANES = 0;
    static constexpr size_t DIRECTORY_ENTRY_NBYTES = 1;
    static constexpr size_t FULL_STATIC_NBYTES = BLOCK_COUNT * sizeof(V);
};

// As in zipccl/codec/base.py.
enum Op : int { SUM, PROD, MIN, MAX, SET };

// Why decode_body refused; zipccl/codec/native.py has the words.
enum Status : int {
    OK,
    ENDS_IN_DIRECTORY,    // the body is shorter than its tile ends and directory
    WRONG_SIZE,           // the body's size is not what the last tile's ends tell
    BAD_ENTRY,            // a directory entry that no encoder writes
    WRONG_TILE_END,       // a tile's ends differ from the directory's sizes
    WRONG_BLOCK_SIZE,     // a block's codes take another size than its directory entry tells
};

constexpr int MAX_THREADS = 64;

// The threads that share one call's work: the calling one, and those that the process keeps for this, unless another
// call has them.
class Team {
  public:
    // most: how many threads to be at most, the calling one included.
    explicit Team(int most);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Call step(context, index) for each index less than steps, in any order, and return when all have returned.
    void run(size_t steps, void (*step)(void* context, size_t index), void* context);

    // Memory of nbytes bytes that is kept from call to call, for an index less than threads, of a team of more than
    // one; null if there is no more.
    uint8_t* scratch(size_t index, size_t nbytes);

    size_t threads;

  private:
    void* pool;
};

// One instruction set's codec; the functions are those of the Codec protocol in zipccl/codec/base.py. Those that code
// share their work among as many threads as they are told.
struct Implementation {
    const char* name;
    bool (*supported)();
    size_t (*encode_body)(int dtype, const uint8_t* source, size_t count, uint8_t* body, int threads);
    Status (*decode_body)(int dtype, const uint8_t* body, size_t nbytes, uint8_t* target, size_t count, int threads);
    Status (*decode_reduce)(int dtype, int op, const uint8_t* body, size_t nbytes, uint8_t* accumulator, size_t count,
                            int threads);
    size_t (*pack_encode)(int dtype, const uint8_t* accumulator, size_t count, uint64_t divisor, uint8_t* target,
                          uint8_t* body, int threads);
    void (*widen)(int dtype, const uint8_t* source, uint8_t* accumulator, size_t count);
    void (*accumulate)(int dtype, int op, const uint8_t* source, uint8_t* accumulator, size_t count);
    void (*pack)(int dtype, const uint8_t* accumulator, uint8_t* target, size_t count, uint64_t divisor);
};

extern const Implementation portable;
#if defined(__x86_64__)
extern const Implementation avx512;
extern const Implementation avx2;
#endif

// Return the implementations, best first, ended by a null pointer; some may not be supported by this machine.
const Implementation* const* implementations();

}  // namespace zipccl
