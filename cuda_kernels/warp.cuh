// What a warp's lanes work out together, and four bytes at a time in a word.

#pragma once

#include "memory.cuh"

// The sum of the values of all lanes up to this one.
__device__ __forceinline__ u32 inclusive_scan(u32 value) {
#pragma unroll
    for (u32 distance = 1; distance < LANES; distance *= 2) {
#if defined(__CUDA_ARCH__)
        // The predicate tells whether there is such a lane.
        asm volatile(
            "{.reg .u32 below; .reg .pred exists;\n"
            " shfl.sync.up.b32 below|exists, %0, %1, 0, 0xFFFFFFFF;\n"
            " @exists add.u32 %0, %0, below;}"
            : "+r"(value)
            : "r"(distance));
#else
        const u32 below = __shfl_up_sync(FULL_WARP, value, distance);
        if (lane_index() >= distance) value += below;
#endif
    }
    return value;
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (u32 distance = LANES / 2; distance; distance /= 2) value += __shfl_xor_sync(FULL_WARP, value, distance);
    return value;
}

constexpr u32 EVERY_BYTE = 0x01010101;
constexpr u32 HIGH_BITS = 0x80808080;

// The bits of a where the mask has ones, else those of b.
__device__ __forceinline__ u32 select_bits(u32 mask, u32 a, u32 b) {
#if defined(__CUDA_ARCH__)
    u32 result;  // one instruction, of which the compiler would make two where it knows the mask
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(result) : "r"(mask), "r"(a), "r"(b));
    return result;
#else
    return (a & mask) | (b & ~mask);
#endif
}

// The bits within the mask that a or b have.
__device__ __forceinline__ u32 either_of(u32 a, u32 b, u32 mask) {
#if defined(__CUDA_ARCH__)
    u32 result;  // one instruction, as above
    asm("lop3.b32 %0, %1, %2, %3, 0xA8;" : "=r"(result) : "r"(a), "r"(b), "r"(mask));
    return result;
#else
    return (a | b) & mask;
#endif
}

// How many bits of the mask are set, if some of them count inverted.
__device__ __forceinline__ u32 count_flags(u32 bits, u32 mask, u32 inverted) {
#if defined(__CUDA_ARCH__)
    u32 flags;  // one instruction, as above
    asm("lop3.b32 %0, %1, %2, %3, 0x48;" : "=r"(flags) : "r"(bits), "r"(mask), "r"(inverted));
    return __popc(flags);
#else
    return __popc((bits ^ inverted) & mask);
#endif
}

// Bytes without a borrow from one to the next.
__device__ __forceinline__ u32 bytes_minus(u32 a, u32 b) {
    return ((a | HIGH_BITS) - (b & ~HIGH_BITS)) ^ ((a ^ ~b) & HIGH_BITS);
}

// The high bit of each byte that is not zero.
__device__ __forceinline__ u32 nonzero_bytes(u32 a) { return (((a & ~HIGH_BITS) + ~HIGH_BITS) | a) & HIGH_BITS; }

// 255 for each byte that has its high bit set.
__device__ __forceinline__ u32 spread_high_bits(u32 high) { return (high >> 7) * 255; }

__device__ __forceinline__ u32 bytes_equal(u32 a, u32 b) { return ~nonzero_bytes(a ^ b) & HIGH_BITS; }

// Gather bit 0 of eight bytes.
__device__ __forceinline__ u32 gather_bits(u32 low, u32 high) {
    return __dp4a(low, 0x08040201u, __dp4a(high, 0x80402010u, 0u));
}

// Undo gather_bits for four bits; what is above them is ignored.
__device__ __forceinline__ u32 spread_bits(u32 bits) { return ((bits & 15) * 0x00204081) & EVERY_BYTE; }

// Bit 0 of eight nibbles, from eight bits.
__device__ __forceinline__ u32 spread_to_nibbles(u32 bits) {
    bits = bits * 0x1001 & 0x000F000F;
    bits = bits * 0x41 & 0x03030303;
    return bits * 9 & 0x11111111;
}

__device__ __forceinline__ u32 byte_at(const u32 (&packed)[2], u32 i) { return packed[i / 4] >> (8 * (i % 4)) & 255; }

// Which lanes have a bit set.
__device__ __forceinline__ u32 lanes_with(u32 bits) {
#if defined(__CUDA_ARCH__)
    u32 lanes;
    asm volatile(
        "{.reg .pred some; setp.ne.u32 some, %1, 0; vote.sync.ballot.b32 %0, some, 0xFFFFFFFF;}"
        : "=r"(lanes)
        : "r"(bits));
    return lanes;
#else
    return __ballot_sync(FULL_WARP, bits);
#endif
}

// As __byte_perm, but that a selector's nibble with its high bit set gives eight times the high bit of the byte it selects.
__device__ __forceinline__ u32 permute(u32 low, u32 high, u32 selector) {
    u32 result;
#if defined(__CUDA_ARCH__)
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
#else
    result = __byte_perm(low, high, selector & 0x7777);
    for (u32 i = 0; i < 4; ++i) {
        const u32 high_bit = result >> (8 * i + 7) & 1;
        if (selector >> (4 * i) & 8) result = (result & ~(255u << (8 * i))) | (high_bit * 255) << (8 * i);
    }
#endif
    return result;
}

// Shifts that leave nothing where the distance is 32 or more, or negative.
__device__ __forceinline__ u32 shift_right(u32 bits, u32 distance) {
#if defined(__CUDA_ARCH__)
    u32 result;
    asm("shr.u32 %0, %1, %2;" : "=r"(result) : "r"(bits), "r"(distance));
    return result;
#else
    return distance < 32 ? bits >> distance : 0;
#endif
}

// The upper half of 64 bits that are shifted to the left, of which the lower half were the bits given.
__device__ __forceinline__ u32 shifted_out(u32 bits, u32 distance) {
#if defined(__CUDA_ARCH__)
    u64 result;
    asm("shl.b64 %0, %1, %2;" : "=l"(result) : "l"(u64(bits)), "r"(distance));
    return u32(result >> 32);
#else
    return distance < 64 ? u32((u64(bits) << distance) >> 32) : 0;
#endif
}

__device__ __forceinline__ u32 shift_left(u32 bits, u32 distance) {
#if defined(__CUDA_ARCH__)
    u32 result;
    asm("shl.b32 %0, %1, %2;" : "=r"(result) : "r"(bits), "r"(distance));
    return result;
#else
    return distance < 32 ? bits << distance : 0;
#endif
}
