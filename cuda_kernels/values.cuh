// Values to their exponents, rests and low bits, and back.

#pragma once

#include "warp.cuh"

using Word = typename D::Word;

constexpr u32 LANE_NBYTES = LANE_COUNT * ITEMSIZE;

// A lane's eight consecutive items of a block, packed as in memory.
template <class T>
struct LaneItems {
    static constexpr u32 NBYTES = sizeof(T);
    u32 word[LANE_COUNT * NBYTES / 4];

    __device__ __forceinline__ void load(const u8* block) { load_lane_words(block, word); }
    __device__ __forceinline__ void store(u8* block) const { store_lane_words(block, word); }

    __device__ __forceinline__ T value(u32 i) const {
        if constexpr (NBYTES == 8) return word[2 * i] | u64(word[2 * i + 1]) << 32;
        if constexpr (NBYTES == 4) return word[i];
        return T(word[i * NBYTES / 4] >> (8 * (i * NBYTES % 4)));
    }

    __device__ __forceinline__ void set(u32 i, T value) {
        if constexpr (NBYTES == 8) {
            word[2 * i] = u32(value);
            word[2 * i + 1] = u32(u64(value) >> 32);
        } else if constexpr (NBYTES == 4) {
            word[i] = u32(value);
        } else {
            const u32 shift = 8 * (i * NBYTES % 4);
            u32& packed = word[i * NBYTES / 4];
            packed = (packed & ~(u32(T(~0)) << shift)) | u32(value) << shift;
        }
    }
};
using LaneValues = LaneItems<Word>;

template <class T>
__device__ __forceinline__ T load_item(const u8* address) {
    if (misalignment(address, sizeof(T)) == 0) return *reinterpret_cast<const T*>(address);
    return T(load_bytes<sizeof(T)>(address));
}

template <class T>
__device__ __forceinline__ void store_item(u8* address, T value) {
    if (misalignment(address, sizeof(T)) == 0) {
        *reinterpret_cast<T*>(address) = value;
    } else {
        store_bytes<sizeof(T)>(address, value);
    }
}

__device__ __forceinline__ Word load_value(const u8* address) { return load_item<Word>(address); }
__device__ __forceinline__ void store_value(u8* address, Word value) { store_item<Word>(address, value); }

// The parts of a float. Exponent fields are taken and given as they are in the value, without regard to an origin.
template <class F>
struct Parts {
    static constexpr u32 SIGN_SHIFT = 8 * F::ITEMSIZE - 1;
    static constexpr u32 FIELD_MASK = (1u << F::EXPONENT_BITS) - 1;
    static constexpr u32 HIGH_MASK = (1u << (F::REST_BITS - 1)) - 1;
    static constexpr u64 LOW_MASK = (u64(1) << F::LOW_BITS) - 1;

    __device__ static __forceinline__ u32 field(Word value) { return u32(value >> F::MANTISSA_BITS) & FIELD_MASK; }
    __device__ static __forceinline__ u32 rest(Word value) {
        return (u32(value >> F::LOW_BITS) & HIGH_MASK) << 1 | u32(value >> SIGN_SHIFT);
    }
    __device__ static __forceinline__ Word low(Word value) { return Word(value & LOW_MASK); }
    __device__ static __forceinline__ Word join(u32 field, u32 rest, Word low) {
        const Word magnitude = Word(Word(field & FIELD_MASK) << F::MANTISSA_BITS | Word(rest >> 1) << F::LOW_BITS);
        return Word(Word(rest & 1) << SIGN_SHIFT | magnitude | low);
    }
};

// Which low planes have a bit set, given all values' low bits joined by or.
__device__ __forceinline__ u32 low_planes_of(u64 any) {
    u32 mask = 0;
#pragma unroll
    for (u32 plane = 0; plane < D::LOW_PLANES; ++plane) {
        if constexpr (D::IS_FLOAT) {
            const bool whole = plane < D::LOW_BYTES;
            const u32 first_bit = whole ? 8 * plane : 8 * D::LOW_BYTES + (plane - D::LOW_BYTES) * D::GROUP_BITS;
            const u32 bits = whole ? 8 : D::GROUP_BITS;
            if (any >> first_bit & ((1u << bits) - 1)) mask |= 1u << plane;
        }
    }
    return mask;
}
