// The part of CUDA C++ that the kernels use, for g++: each CUDA thread is a fiber, which simt.cpp runs.
//
// Files that include this header first are compiled with -fsanitize=thread, but linked with simt.cpp instead of that
// sanitizer's library: so each of their reads and writes of memory calls simt.cpp, which checks it.

#pragma once

#include <cstdint>
#include <type_traits>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// All shared memory of a module is in one section, which is swapped when another thread block goes on. (So it cannot be
// declared in templates, of whose variables g++ ignores the section.)
#define __shared__ static __attribute__((section("simt_shared")))

#define threadIdx (simt::thread_index())
#define blockIdx (simt::block_index())
#define blockDim (simt::block_size())
#define gridDim (simt::grid_size())

namespace simt {

struct Index {
    unsigned x;
};

Index thread_index() __attribute__((const));
Index block_index() __attribute__((const));
Index block_size() __attribute__((const));
Index grid_size() __attribute__((const));

// What the lanes of a warp do together; the argument is a lane, a distance or nothing.
enum class Together : unsigned {
    SYNC,
    SHUFFLE,
    SHUFFLE_UP,
    SHUFFLE_DOWN,
    SHUFFLE_XOR,
    BALLOT,
    ANY,
    ALL,
    ADD,
    MIN,
    MAX,
    AND,
    OR,
    XOR,
};

// Wait until all lanes of the mask do the same, and return the caller's result.
uint64_t together(Together what, unsigned mask, uint64_t value, unsigned argument);
void synchronize_block();
void check_alignment(const void* address, unsigned alignment);

extern "C" {
extern char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
}

}  // namespace simt

extern "C" __attribute__((used)) inline void simt_shared_memory(char** start, char** stop) {
    *start = simt::__start_simt_shared;
    *stop = simt::__stop_simt_shared;
}

struct uint2 {
    unsigned x, y;
    uint2(unsigned x, unsigned y) : x(x), y(y) {}
    uint2(const uint2& other) { *this = other; }
    uint2& operator=(const uint2& other) {
        simt::check_alignment(this, 8);
        simt::check_alignment(&other, 8);
        x = other.x, y = other.y;
        return *this;
    }
} __attribute__((aligned(8)));

struct uint4 {
    unsigned x, y, z, w;
    uint4(unsigned x, unsigned y, unsigned z, unsigned w) : x(x), y(y), z(z), w(w) {}
    uint4(const uint4& other) { *this = other; }
    uint4& operator=(const uint4& other) {
        simt::check_alignment(this, 16);
        simt::check_alignment(&other, 16);
        x = other.x, y = other.y, z = other.z, w = other.w;
        return *this;
    }
} __attribute__((aligned(16)));

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads() { simt::synchronize_block(); }
inline void __syncwarp(unsigned mask = ~0u) { simt::together(simt::Together::SYNC, mask, 0, 0); }
inline void __threadfence() {}

// As CUDA has them: of int, long long, and the unsigned ones.
#define SIMT_SHUFFLE(name, what, type)                                                                       \
    inline type name(unsigned mask, type value, unsigned argument) {                                         \
        using Bits = std::make_unsigned_t<type>;                                                             \
        return static_cast<type>(simt::together(simt::Together::what, mask, static_cast<Bits>(value), argument)); \
    }
#define SIMT_SHUFFLES(name, what)               \
    SIMT_SHUFFLE(name, what, int)               \
    SIMT_SHUFFLE(name, what, unsigned)          \
    SIMT_SHUFFLE(name, what, long long)         \
    SIMT_SHUFFLE(name, what, unsigned long long)
SIMT_SHUFFLES(__shfl_sync, SHUFFLE)
SIMT_SHUFFLES(__shfl_up_sync, SHUFFLE_UP)
SIMT_SHUFFLES(__shfl_down_sync, SHUFFLE_DOWN)
SIMT_SHUFFLES(__shfl_xor_sync, SHUFFLE_XOR)
#undef SIMT_SHUFFLES
#undef SIMT_SHUFFLE

#define SIMT_TOGETHER(name, what)                                                              \
    inline unsigned name(unsigned mask, unsigned value) {                                      \
        return static_cast<unsigned>(simt::together(simt::Together::what, mask, value, 0));     \
    }
SIMT_TOGETHER(__ballot_sync, BALLOT)
SIMT_TOGETHER(__any_sync, ANY)
SIMT_TOGETHER(__all_sync, ALL)
SIMT_TOGETHER(__reduce_add_sync, ADD)
SIMT_TOGETHER(__reduce_min_sync, MIN)
SIMT_TOGETHER(__reduce_max_sync, MAX)
SIMT_TOGETHER(__reduce_and_sync, AND)
SIMT_TOGETHER(__reduce_or_sync, OR)
SIMT_TOGETHER(__reduce_xor_sync, XOR)
#undef SIMT_TOGETHER

// Threads never run at the same time, and an atomic is no access that simt.cpp hears of.
#define SIMT_ATOMIC(name, type, result)                                            \
    __attribute__((no_sanitize_thread, noinline)) inline type name(type* address, type value) { \
        const type old = *address;                                                 \
        *address = result;                                                         \
        return old;                                                                \
    }
SIMT_ATOMIC(atomicAdd, unsigned, old + value)
SIMT_ATOMIC(atomicAdd, unsigned long long, old + value)
SIMT_ATOMIC(atomicMax, unsigned, old < value ? value : old)
SIMT_ATOMIC(atomicMax, unsigned long long, old < value ? value : old)
SIMT_ATOMIC(atomicOr, unsigned, old | value)
#undef SIMT_ATOMIC

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __clz(int value) { return value ? __builtin_clz(value) : 32; }

inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    for (int shift = 0; shift < 32; shift += 8) sum += (a >> shift & 255) * (b >> shift & 255);
    return sum;
}

inline int __dp4a(int a, int b, int sum) {
    for (int shift = 0; shift < 32; shift += 8) sum += static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
    return sum;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = low | static_cast<uint64_t>(high) << 32;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    }
    return result;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((low | static_cast<uint64_t>(high) << 32) >> (shift & 31));
}

inline unsigned __vmaxu2(unsigned a, unsigned b) {
    const unsigned low = (a & 0xFFFF) > (b & 0xFFFF) ? a & 0xFFFF : b & 0xFFFF;
    const unsigned high = a >> 16 > b >> 16 ? a >> 16 : b >> 16;
    return high << 16 | low;
}
