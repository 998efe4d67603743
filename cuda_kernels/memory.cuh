// Loads, stores and copies at addresses of any alignment; whole vectors where the address allows.

#pragma once

#include "format.cuh"

constexpr u32 LANES = 32;
constexpr u32 WARPS = 8;
constexpr u32 THREADS = WARPS * LANES;
// Thread blocks that a multiprocessor must have room for. Left to choose, the compiler makes room for more, and spills;
// for newer architectures it needs more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr u32 RESIDENT = ITEMSIZE < 4 ? 2 : 1;
#else
constexpr u32 RESIDENT = 4;
#endif
constexpr u32 FULL_WARP = 0xFFFFFFFF;

// How many consecutive values of a block a lane holds.
constexpr u32 LANE_COUNT = BLOCK_COUNT / LANES;

__device__ __forceinline__ u32 lane_index() { return threadIdx.x % LANES; }
__device__ __forceinline__ u32 warp_index() { return threadIdx.x / LANES; }
__device__ __forceinline__ u32 lanes_below() { return (1u << lane_index()) - 1; }

// Of a value that all lanes have: tell the compiler so.
__device__ __forceinline__ u32 same_in_warp(u32 value) { return __shfl_sync(FULL_WARP, value, 0); }

// Of an address: tell the compiler to have it in registers and not to work it out again at each use.
template <class T>
__device__ __forceinline__ T* keep(T* address) {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+l"(address));
#endif
    return address;
}

__device__ __forceinline__ u32 misalignment(const void* address, u32 alignment) {
    return u32(reinterpret_cast<u64>(address)) & (alignment - 1);
}

template <u32 NBYTES>
__device__ __forceinline__ u64 load_bytes(const u8* address) {
    u64 value = 0;
#pragma unroll
    for (u32 i = 0; i < NBYTES; ++i) value |= u64(address[i]) << (8 * i);
    return value;
}

template <u32 NBYTES>
__device__ __forceinline__ void store_bytes(u8* address, u64 value) {
#pragma unroll
    for (u32 i = 0; i < NBYTES; ++i) address[i] = u8(value >> (8 * i));
}

// Load COUNT words from an address that is a multiple of their size behind another one, or at it. That one's alignment
// decides: if all lanes give the same, they stay together.
template <u32 COUNT>
__device__ __forceinline__ void load_words(const u8* address, u32 (&word)[COUNT], const u8* aligned) {
    if (COUNT % 4 == 0 && misalignment(aligned, 16) == 0) {
#pragma unroll
        for (u32 i = 0; i + 4 <= COUNT; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(address + 4 * i);
            word[i] = four.x;
            word[i + 1] = four.y;
            word[i + 2] = four.z;
            word[i + 3] = four.w;
        }
    } else if (COUNT % 2 == 0 && misalignment(aligned, 8) == 0) {
#pragma unroll
        for (u32 i = 0; i + 2 <= COUNT; i += 2) {
            const uint2 two = *reinterpret_cast<const uint2*>(address + 4 * i);
            word[i] = two.x;
            word[i + 1] = two.y;
        }
    } else if (misalignment(aligned, 4) == 0) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) word[i] = *reinterpret_cast<const u32*>(address + 4 * i);
    } else {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) word[i] = u32(load_bytes<4>(address + 4 * i));
    }
}

template <u32 COUNT>
__device__ __forceinline__ void store_words(u8* address, const u32 (&word)[COUNT], const u8* aligned) {
    if (COUNT % 4 == 0 && misalignment(aligned, 16) == 0) {
#pragma unroll
        for (u32 i = 0; i + 4 <= COUNT; i += 4) {
            *reinterpret_cast<uint4*>(address + 4 * i) = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
        }
    } else if (COUNT % 2 == 0 && misalignment(aligned, 8) == 0) {
#pragma unroll
        for (u32 i = 0; i + 2 <= COUNT; i += 2) {
            *reinterpret_cast<uint2*>(address + 4 * i) = make_uint2(word[i], word[i + 1]);
        }
    } else if (misalignment(aligned, 4) == 0) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) *reinterpret_cast<u32*>(address + 4 * i) = word[i];
    } else {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) store_bytes<4>(address + 4 * i, word[i]);
    }
}

// Load and store COUNT words for each lane, one lane's behind the other's.
template <u32 COUNT>
__device__ __forceinline__ void load_lane_words(const u8* address, u32 (&word)[COUNT]) {
    load_words(address + lane_index() * COUNT * 4, word, address);
}
template <u32 COUNT>
__device__ __forceinline__ void store_lane_words(u8* address, const u32 (&word)[COUNT]) {
    store_words(address + lane_index() * COUNT * 4, word, address);
}

// Items in shared memory. On a GPU their address is a register of 32 bits, which the compiler does not work out again at
// each use.
template <class T>
struct SharedItems {
#if defined(__CUDA_ARCH__)
    u32 address;

    __device__ __forceinline__ explicit SharedItems(const T* items) : address(u32(__cvta_generic_to_shared(items))) {
        asm volatile("" : "+r"(address));
    }
    __device__ __forceinline__ void skip(u32 count) { address += count * u32(sizeof(T)); }
    __device__ __forceinline__ u32 load(u32 i = 0) const {
        u32 value;
        const u32 place = address + i * u32(sizeof(T));
        if constexpr (sizeof(T) == 1) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(place) : "memory");
        if constexpr (sizeof(T) == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(place) : "memory");
        if constexpr (sizeof(T) == 4) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(place) : "memory");
        return value;
    }
    // Two words, the first at an address that is a multiple of eight.
    __device__ __forceinline__ uint2 load_two(u32 i) const {
        uint2 two;
        const u32 place = address + i * u32(sizeof(T));
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(two.x), "=r"(two.y) : "r"(place) : "memory");
        return two;
    }
    __device__ __forceinline__ void store(u32 value, u32 i = 0) const {
        const u32 place = address + i * u32(sizeof(T));
        if constexpr (sizeof(T) == 1) asm volatile("st.shared.u8 [%0], %1;" ::"r"(place), "r"(value) : "memory");
        if constexpr (sizeof(T) == 2) asm volatile("st.shared.u16 [%0], %1;" ::"r"(place), "r"(value) : "memory");
        if constexpr (sizeof(T) == 4) asm volatile("st.shared.u32 [%0], %1;" ::"r"(place), "r"(value) : "memory");
    }
#else
    T* items;

    explicit SharedItems(const T* items) : items(const_cast<T*>(items)) {}
    void skip(u32 count) { items += count; }
    u32 load(u32 i = 0) const { return items[i]; }
    uint2 load_two(u32 i) const { return *reinterpret_cast<const uint2*>(items + i); }
    void store(u32 value, u32 i = 0) const { items[i] = T(value); }
#endif
};

// Copy bytes with all of the threads that call; thread is the caller's number among so many.
__device__ __forceinline__ void copy(u8* to, const u8* from, u32 nbytes, u32 thread, u32 threads) {
    u32 done = 0;
    if (misalignment(to, 16) == misalignment(from, 16)) {
        const u32 head = smaller((16 - misalignment(to, 16)) % 16, nbytes);
        const u32 vectors = (nbytes - head) / 16;
        if (thread < head) to[thread] = from[thread];
#pragma unroll 4
        for (u32 i = thread; i < vectors; i += threads) {
            reinterpret_cast<uint4*>(to + head)[i] = reinterpret_cast<const uint4*>(from + head)[i];
        }
        done = head + 16 * vectors;
    }
#pragma unroll 1
    for (u32 i = done + thread; i < nbytes; i += threads) to[i] = from[i];
}

__device__ __forceinline__ void fill(u8* to, u8 byte, u32 nbytes, u32 thread, u32 threads) {
#pragma unroll 1
    for (u32 i = thread; i < nbytes; i += threads) to[i] = byte;
}

// A value that another thread block waits for, with all that the thread wrote before.
__device__ __forceinline__ void store_release(u32* address, u32 value) {
#if defined(__CUDA_ARCH__)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
#else
    __threadfence();
    *address = value;
#endif
}

__device__ __forceinline__ u32 load_acquire(const u32* address) {
#if defined(__CUDA_ARCH__)
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
#else
    const u32 value = *reinterpret_cast<const volatile u32*>(address);
    __threadfence();
    return value;
#endif
}
