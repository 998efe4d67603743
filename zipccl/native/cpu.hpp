// What an x86-64 processor, and the operating system on it, can do. Compiled for the baseline: include it before a
// file selects its instruction set.

#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

namespace zipccl {
namespace {

struct CpuFeatures {
    unsigned leaf_1_ecx = 0;
    unsigned leaf_7_ebx = 0;
    unsigned leaf_7_ecx = 0;
    uint64_t saved_registers = 0;  // XCR0: the register files that the operating system saves between threads
};

CpuFeatures cpu_features() {
    CpuFeatures features;
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) features.leaf_1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        features.leaf_7_ebx = ebx;
        features.leaf_7_ecx = ecx;
    }
    if (features.leaf_1_ecx & bit_OSXSAVE) {
        unsigned low, high;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        features.saved_registers = uint64_t(high) << 32 | low;
    }
    return features;
}

inline bool has_all(uint64_t features, uint64_t wanted) { return (features & wanted) == wanted; }

// XMM and the upper halves of YMM.
constexpr uint64_t SAVES_YMM = 0x06;

// XMM, the upper halves of YMM, the mask registers, the upper halves of ZMM, and ZMM16 to ZMM31.
constexpr uint64_t SAVES_ZMM = 0xE6;

}  // namespace
}  // namespace zipccl

#endif
