// What an x86-64 processor, and the operating system on it, can do. Compiled for the baseline: include it before a
// file selects its instruction set.

#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

namespace zipccl {
namespace {

constexpr unsigned ZEN_3_FAMILY = 0x19;
constexpr unsigned HYGON_EBX = 0x6F677948;  // "Hygo"
constexpr unsigned HYGON_ECX = 0x656E6975;  // "uine"

struct CpuFeatures {
    bool has_slow_pdep = false;  // AMD before Zen 3, and Hygon's likes: PDEP and PEXT take up to hundreds of cycles
    unsigned leaf_1_ecx = 0;
    unsigned leaf_7_ebx = 0;
    unsigned leaf_7_ecx = 0;
    uint64_t saved_registers = 0;  // XCR0: the register files that the operating system saves between threads
};

CpuFeatures cpu_features() {
    CpuFeatures features;
    unsigned eax, ebx, ecx, edx;
    const bool has_vendor = __get_cpuid(0, &eax, &ebx, &ecx, &edx);
    const bool is_amd = has_vendor && ((ebx == signature_AMD_ebx && ecx == signature_AMD_ecx) ||
                                       (ebx == HYGON_EBX && ecx == HYGON_ECX));
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        const unsigned family = (eax >> 8 & 15) + (eax >> 20 & 255);  // as AMD and Hygon count, from 15 on
        features.has_slow_pdep = is_amd && family < ZEN_3_FAMILY;
        features.leaf_1_ecx = ecx;
    }
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
