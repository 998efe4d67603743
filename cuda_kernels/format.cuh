// The wire format's constants, the element types, and the sizes that a directory entry tells.
//
// The format is specified in zipccl/codec/wire.py; the names here are the same. A module of kernels is all .cu files of
// this folder, compiled for one element type, D, by a macro ZIPCCL_DTYPE_<NAME>.

#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 BLOCK_COUNT = 256;
constexpr u32 TILE_BLOCKS = 64;
constexpr u32 TILE_ENTRY_NBYTES = 16;
constexpr u32 ALIGNMENT = 16;

constexpr u32 BIT_PLANE_NBYTES = BLOCK_COUNT / 8;
constexpr u32 BYTE_PLANE_NBYTES = BLOCK_COUNT;

constexpr u32 TABLE_SHIFT = 6;
constexpr u32 CODE_RAW = 192;
constexpr u32 CODE_ZERO = 193;
constexpr u32 CODE_CONSTANT = 194;
constexpr u32 CODE_SPARSE = 196;
constexpr u32 MAX_CODED_VARIABLE_NBYTES = 2 * ((1 << TABLE_SHIFT) - 1);
constexpr u32 MAX_SPARSE_UNITS = 255;
constexpr u32 MIN_SPARSE_ZEROS = 16;

constexpr u32 DEEPER = 3;
constexpr u32 SKEWED = 0;
constexpr u32 FALLING = 1;
constexpr u32 SYMMETRIC = 2;
constexpr u32 TABLES = 3;

// Why decoding refused, as in zipccl/native/codec.hpp.
enum Status : u32 { OK, ENDS_IN_DIRECTORY, WRONG_SIZE, BAD_ENTRY, WRONG_TILE_END, WRONG_BLOCK_SIZE };

__device__ constexpr u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

template <u32 NBYTES>
struct WordOf;
template <>
struct WordOf<1> { using Type = u8; };
template <>
struct WordOf<2> { using Type = u16; };
template <>
struct WordOf<4> { using Type = u32; };
template <>
struct WordOf<8> { using Type = u64; };

// A float of so many bits; wire.py says what rest and low planes are.
template <u32 NBYTES, u32 EXPONENT, u32 MANTISSA>
struct Float {
    using Word = typename WordOf<NBYTES>::Type;
    static constexpr bool IS_FLOAT = true;
    static constexpr u32 ITEMSIZE = NBYTES;
    static constexpr u32 EXPONENT_BITS = EXPONENT;
    static constexpr u32 MANTISSA_BITS = MANTISSA;
    static constexpr u32 ORIGIN_NBYTES = EXPONENT > 8 ? 2 : 0;
    static constexpr u32 REST_BITS = (MANTISSA < 7 ? MANTISSA : 7) + 1;
    static constexpr u32 LOW_BITS = MANTISSA - (REST_BITS - 1);
    // Low planes: first those of whole bytes; then the bits that are left, one group if there are such bytes.
    static constexpr u32 LOW_BYTES = LOW_BITS / 8;
    static constexpr u32 GROUP_BITS = LOW_BYTES ? LOW_BITS % 8 : LOW_BITS ? 1 : 0;
    static constexpr u32 GROUPS = GROUP_BITS ? LOW_BITS % 8 / GROUP_BITS : 0;
    static constexpr u32 LOW_PLANES = LOW_BYTES + GROUPS;
    static constexpr u32 DIRECTORY_ENTRY_NBYTES = LOW_PLANES ? 3 : 2;
    static constexpr u32 REST_NBYTES = REST_BITS * BIT_PLANE_NBYTES;
    static constexpr u32 CODED_STATIC_NBYTES = REST_NBYTES + 2 * BIT_PLANE_NBYTES;
    static constexpr u32 FULL_STATIC_NBYTES = CODED_STATIC_NBYTES + LOW_BITS * BIT_PLANE_NBYTES;
};

// An integer or bool, of which only zero and constant blocks are elided; it has no parts.
template <u32 NBYTES>
struct Whole {
    using Word = typename WordOf<NBYTES>::Type;
    static constexpr bool IS_FLOAT = false;
    static constexpr u32 ITEMSIZE = NBYTES;
    static constexpr u32 EXPONENT_BITS = 0;
    static constexpr u32 MANTISSA_BITS = 0;
    static constexpr u32 ORIGIN_NBYTES = 0;
    static constexpr u32 REST_BITS = 8;
    static constexpr u32 LOW_BITS = 0;
    static constexpr u32 LOW_BYTES = 0;
    static constexpr u32 GROUP_BITS = 0;
    static constexpr u32 GROUPS = 0;
    static constexpr u32 LOW_PLANES = 0;
    static constexpr u32 REST_NBYTES = 0;
    static constexpr u32 CODED_STATIC_NBYTES = 0;
    static constexpr u32 DIRECTORY_ENTRY_NBYTES = 1;
    static constexpr u32 FULL_STATIC_NBYTES = BLOCK_COUNT * NBYTES;
};

#if defined(ZIPCCL_DTYPE_BFLOAT16)
using D = Float<2, 8, 7>;
#elif defined(ZIPCCL_DTYPE_FLOAT16)
using D = Float<2, 5, 10>;
#elif defined(ZIPCCL_DTYPE_FLOAT32)
using D = Float<4, 8, 23>;
#elif defined(ZIPCCL_DTYPE_FLOAT64)
using D = Float<8, 11, 52>;
#elif defined(ZIPCCL_DTYPE_FLOAT8_E4M3FN)
using D = Float<1, 4, 3>;
#elif defined(ZIPCCL_DTYPE_FLOAT8_E5M2)
using D = Float<1, 5, 2>;
#elif defined(ZIPCCL_DTYPE_BOOL) || defined(ZIPCCL_DTYPE_INT8) || defined(ZIPCCL_DTYPE_UINT8)
using D = Whole<1>;
#elif defined(ZIPCCL_DTYPE_INT16) || defined(ZIPCCL_DTYPE_UINT16)
using D = Whole<2>;
#elif defined(ZIPCCL_DTYPE_INT32) || defined(ZIPCCL_DTYPE_UINT32)
using D = Whole<4>;
#elif defined(ZIPCCL_DTYPE_INT64) || defined(ZIPCCL_DTYPE_UINT64)
using D = Whole<8>;
#else
#error "define the macro ZIPCCL_DTYPE_<NAME> of the element type"
#endif

constexpr u32 ITEMSIZE = D::ITEMSIZE;
constexpr u32 BLOCK_NBYTES = BLOCK_COUNT * ITEMSIZE;
constexpr u32 RAW_VARIABLE_NBYTES = BLOCK_NBYTES - D::FULL_STATIC_NBYTES;
constexpr u32 CONSTANT_NBYTES = ITEMSIZE + ITEMSIZE % 2;
constexpr u32 ALL_LOW_PLANES = (1 << D::LOW_PLANES) - 1;

struct Layout {
    u64 blocks;
    u64 tiles;
    u32 tail_count;
    u64 directory_offset;
    u64 static_offset;

    __device__ explicit Layout(u64 count)
        : blocks(count / BLOCK_COUNT),
          tiles((blocks + TILE_BLOCKS - 1) / TILE_BLOCKS),
          tail_count(count % BLOCK_COUNT),
          directory_offset(tiles * TILE_ENTRY_NBYTES),
          static_offset((directory_end() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) {}

    __device__ u64 directory_end() const { return directory_offset + blocks * D::DIRECTORY_ENTRY_NBYTES; }
    __device__ u32 blocks_in_tile(u64 tile) const {
        return u32(blocks - tile * TILE_BLOCKS < TILE_BLOCKS ? blocks - tile * TILE_BLOCKS : TILE_BLOCKS);
    }
};

struct Entry {
    u32 code;
    u32 base;
    u32 mask;
};

__device__ __forceinline__ bool is_coded(u32 code) { return code < CODE_RAW; }
__device__ __forceinline__ bool is_sparse(u32 code) { return code >= CODE_SPARSE; }
__device__ __forceinline__ u32 coded_variable_nbytes(u32 code) { return 2 * (code & ((1 << TABLE_SHIFT) - 1)); }

// The size of the low planes that a mask keeps of count values.
__device__ __forceinline__ u32 low_nbytes(u32 mask, u32 count) {
    if constexpr (D::LOW_PLANES > 0) {
        const u32 bytes = __popc(mask & ((1 << D::LOW_BYTES) - 1));
        const u32 groups = __popc(mask >> D::LOW_BYTES);
        return bytes * count + groups * D::GROUP_BITS * ((count + 7) / 8);
    }
    return 0;
}

// The size of the rests of count values.
__device__ __forceinline__ u32 rest_nbytes(u32 count) {
    if constexpr (D::IS_FLOAT) return D::REST_BITS == 8 ? count : D::REST_BITS * ((count + 7) / 8);
    return 0;
}

__device__ __forceinline__ u32 rows_nbytes(u32 count) { return (count + 3) / 4; }

__device__ __forceinline__ u32 static_nbytes_of(Entry entry) {
    if constexpr (D::IS_FLOAT) {
        if (is_coded(entry.code)) return D::CODED_STATIC_NBYTES + low_nbytes(entry.mask, BLOCK_COUNT);
    }
    return entry.code == CODE_RAW ? D::FULL_STATIC_NBYTES : 0;
}

__device__ __forceinline__ u32 variable_nbytes_of(Entry entry) {
    if constexpr (D::IS_FLOAT) {
        if (is_coded(entry.code)) return coded_variable_nbytes(entry.code);
        if (is_sparse(entry.code)) return entry.base * ITEMSIZE;
    }
    return entry.code == CODE_RAW ? RAW_VARIABLE_NBYTES : entry.code == CODE_CONSTANT ? CONSTANT_NBYTES : 0;
}

__device__ __forceinline__ bool is_valid(Entry entry) {
    if constexpr (D::IS_FLOAT) {
        const bool good_mask = entry.mask <= ALL_LOW_PLANES;
        if (is_coded(entry.code)) return coded_variable_nbytes(entry.code) < RAW_VARIABLE_NBYTES && good_mask;
        if (is_sparse(entry.code)) return entry.code < CODE_SPARSE + TABLES && good_mask;
    }
    if (entry.code == CODE_RAW) return entry.mask == ALL_LOW_PLANES;
    return (entry.code == CODE_ZERO || entry.code == CODE_CONSTANT) && entry.mask == 0;
}
