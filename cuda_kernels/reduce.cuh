// How values are widened into an accumulator, combined with it, and rounded to values once; see docs/algorithms.md.
//
// Accumulators are handled by their bits. What rounds is one instruction of inline PTX each, which neither contracts
// nor flushes subnormals whatever options the compiler gets (CuPy gives it -ftz=true); comparisons are of integers.

#pragma once

#include "values.cuh"

// As in zipccl/codec/base.py.
enum Op : u32 { SUM, PROD, MIN, MAX, SET };

#if defined(__CUDA_ARCH__)
#define ZIPCCL_ROUNDED(name, instruction, bits, constraint)                                          \
    __device__ __forceinline__ bits name(bits a, bits b) {                                            \
        bits result;                                                                                  \
        asm(instruction " %0, %1, %2;" : "=" constraint(result) : constraint(a), constraint(b));      \
        return result;                                                                                \
    }
__device__ __forceinline__ float float_of(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ u32 bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ double float_of(u64 bits) { return __longlong_as_double(bits); }
__device__ __forceinline__ u64 bits_of(double value) { return __double_as_longlong(value); }
ZIPCCL_ROUNDED(rounded_sum, "add.rn.f32", float, "f")
ZIPCCL_ROUNDED(rounded_product, "mul.rn.f32", float, "f")
ZIPCCL_ROUNDED(rounded_quotient, "div.rn.f32", float, "f")
ZIPCCL_ROUNDED(rounded_sum, "add.rn.f64", double, "d")
ZIPCCL_ROUNDED(rounded_product, "mul.rn.f64", double, "d")
ZIPCCL_ROUNDED(rounded_quotient, "div.rn.f64", double, "d")
#undef ZIPCCL_ROUNDED
#else
template <class To, class From>
inline To bit_cast(From value) { return __builtin_bit_cast(To, value); }
inline float float_of(u32 bits) { return bit_cast<float>(bits); }
inline u32 bits_of(float value) { return bit_cast<u32>(value); }
inline double float_of(u64 bits) { return bit_cast<double>(bits); }
inline u64 bits_of(double value) { return bit_cast<u64>(value); }
template <class T>
inline T rounded_sum(T a, T b) { return a + b; }
template <class T>
inline T rounded_product(T a, T b) { return a * b; }
template <class T>
inline T rounded_quotient(T a, T b) { return a / b; }
#endif

// Binary32 and binary64, by their bits.
template <class B, class F, u32 MANTISSA>
struct Binary {
    using Bits = B;
    static constexpr u32 SIGN_SHIFT = 8 * sizeof(B) - 1;
    static constexpr B MAGNITUDE = (B(1) << SIGN_SHIFT) - 1;
    static constexpr B INFINITE = MAGNITUDE >> MANTISSA << MANTISSA;
    static constexpr B QUIET_NAN = INFINITE | B(1) << (MANTISSA - 1);

    __device__ static __forceinline__ bool is_nan(B bits) { return (bits & MAGNITUDE) > INFINITE; }
    __device__ static __forceinline__ B add(B a, B b) { return bits_of(rounded_sum(float_of(a), float_of(b))); }
    __device__ static __forceinline__ B multiply(B a, B b) { return bits_of(rounded_product(float_of(a), float_of(b))); }
    __device__ static __forceinline__ B divide(B a, u64 by) { return bits_of(rounded_quotient(float_of(a), F(by))); }
    // The order of IEEE 754-2019's minimum and maximum, in which -0 is less than +0, of what is not NaN.
    __device__ static __forceinline__ bool less(B a, B b) {
        const B negative_a = B(0) - (a >> SIGN_SHIFT);
        const B negative_b = B(0) - (b >> SIGN_SHIFT);
        return (a ^ (negative_a | ~MAGNITUDE)) < (b ^ (negative_b | ~MAGNITUDE));
    }
    __device__ static __forceinline__ B minimum(B a, B b) { return is_nan(a) || (!is_nan(b) && less(a, b)) ? a : b; }
    __device__ static __forceinline__ B maximum(B a, B b) { return is_nan(a) || (!is_nan(b) && less(b, a)) ? a : b; }
};
using Binary32 = Binary<u32, float, 23>;
using Binary64 = Binary<u64, double, 52>;

// The element types: Accumulator is what sums are held in; widen and narrow go from values to it and back.

template <class B>
struct Wide {
    using Accumulator = typename B::Bits;
    using Arithmetic = B;
    __device__ static __forceinline__ Accumulator widen(Accumulator value) { return value; }
    __device__ static __forceinline__ Accumulator narrow(Accumulator value) {
        return B::is_nan(value) ? B::QUIET_NAN : value;
    }
};

struct Brain {
    using Accumulator = u32;
    using Arithmetic = Binary32;
    __device__ static __forceinline__ u32 widen(u16 value) { return u32(value) << 16; }
    __device__ static __forceinline__ u16 narrow(u32 bits) {
        const u32 rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        return u16(Binary32::is_nan(bits) ? 0x7FC0 : rounded);
    }
};

// A float of fewer exponent and mantissa bits than binary32, and of no more than 16 bits in all. Without infinity
// (float8_e4m3fn) only the pattern of all ones is NaN, and what is too large becomes it.
template <u32 EXPONENT_BITS, u32 MANTISSA_BITS, bool HAS_INFINITY>
struct Small {
    using Accumulator = u32;
    using Arithmetic = Binary32;

    static constexpr u32 SHIFT = 23 - MANTISSA_BITS;
    static constexpr u32 SIGN = 1u << (EXPONENT_BITS + MANTISSA_BITS);
    static constexpr u32 SIGN_UP = 31 - EXPONENT_BITS - MANTISSA_BITS;
    static constexpr u32 BIAS = (1u << (EXPONENT_BITS - 1)) - 1;
    static constexpr u32 INFINITE = ((1u << EXPONENT_BITS) - 1) << MANTISSA_BITS;
    static constexpr u32 QUIET_NAN = HAS_INFINITY ? INFINITE | 1u << (MANTISSA_BITS - 1) : SIGN - 1;
    // The greatest magnitude that is not NaN.
    static constexpr u32 GREATEST = HAS_INFINITY ? INFINITE : SIGN - 2;

    __device__ static __forceinline__ u32 widen(Word value) {
        const u32 magnitude = value & (SIGN - 1);
        // The product with a power of two is exact and makes subnormal values normal.
        u32 bits = Binary32::multiply(magnitude << SHIFT, (254 - BIAS) << 23);
        if (HAS_INFINITY) {
            bits |= magnitude >= INFINITE ? 0x7F800000 : 0;
        } else {
            bits = magnitude == QUIET_NAN ? 0x7FC00000 : bits;
        }
        return bits | u32(value & SIGN) << SIGN_UP;
    }

    __device__ static __forceinline__ Word narrow(u32 bits) {
        const u32 magnitude = bits & 0x7FFFFFFF;
        constexpr u32 SMALLEST_NORMAL = (128 - BIAS) << 23;
        // Adding a float whose last bit is the result's subnormal unit rounds to that unit.
        constexpr u32 UNIT = SMALLEST_NORMAL + (SHIFT << 23);
        const u32 subnormal = Binary32::add(magnitude, UNIT) - UNIT;
        const u32 odd = magnitude >> SHIFT & 1;
        const u32 normal = (magnitude - ((127 - BIAS) << 23) + (1u << (SHIFT - 1)) - 1 + odd) >> SHIFT;
        u32 result = magnitude < SMALLEST_NORMAL ? subnormal : normal;
        result = result > GREATEST ? (HAS_INFINITY ? INFINITE : QUIET_NAN) : result;
        const bool nan = magnitude > 0x7F800000 || (!HAS_INFINITY && result == QUIET_NAN);
        return Word(nan ? QUIET_NAN : result | (bits >> SIGN_UP & SIGN));
    }
};

// Sums and products wrap: they are of unsigned numbers, not narrower than int, to which they would be promoted.
template <class T, bool SIGNED>
struct Integer {
    using Accumulator = Word;
    using Arithmetic = Integer;
    using Wrapping = typename WordOf<(sizeof(T) < 4 ? 4 : sizeof(T))>::Type;
    __device__ static __forceinline__ Word widen(Word value) { return value; }
    __device__ static __forceinline__ Word narrow(Word value) { return value; }
    __device__ static __forceinline__ Word add(Word a, Word b) { return Word(Wrapping(a) + Wrapping(b)); }
    __device__ static __forceinline__ Word multiply(Word a, Word b) { return Word(Wrapping(a) * Wrapping(b)); }
    // Toward zero, in 64 bits, which hold the divisor whatever the type is.
    __device__ static __forceinline__ Word divide(Word a, u64 by) {
        return Word(SIGNED ? u64((long long)(T(a)) / (long long)(by)) : u64(T(a)) / by);
    }
    __device__ static __forceinline__ Word minimum(Word a, Word b) { return T(b) < T(a) ? b : a; }
    __device__ static __forceinline__ Word maximum(Word a, Word b) { return T(b) > T(a) ? b : a; }
};

// On values 0 and 1, or is the maximum and and the minimum.
struct Boolean : Integer<u8, false> {
    using Arithmetic = Boolean;
    __device__ static __forceinline__ Word widen(Word value) { return value != 0; }
    __device__ static __forceinline__ Word add(Word a, Word b) { return maximum(a, b); }
    __device__ static __forceinline__ Word multiply(Word a, Word b) { return minimum(a, b); }
};

#if defined(ZIPCCL_DTYPE_BFLOAT16)
using Element = Brain;
#elif defined(ZIPCCL_DTYPE_FLOAT16)
using Element = Small<5, 10, true>;
#elif defined(ZIPCCL_DTYPE_FLOAT32)
using Element = Wide<Binary32>;
#elif defined(ZIPCCL_DTYPE_FLOAT64)
using Element = Wide<Binary64>;
#elif defined(ZIPCCL_DTYPE_FLOAT8_E4M3FN)
using Element = Small<4, 3, false>;
#elif defined(ZIPCCL_DTYPE_FLOAT8_E5M2)
using Element = Small<5, 2, true>;
#elif defined(ZIPCCL_DTYPE_BOOL)
using Element = Boolean;
#elif defined(ZIPCCL_DTYPE_INT8)
using Element = Integer<signed char, true>;
#elif defined(ZIPCCL_DTYPE_INT16)
using Element = Integer<short, true>;
#elif defined(ZIPCCL_DTYPE_INT32)
using Element = Integer<int, true>;
#elif defined(ZIPCCL_DTYPE_INT64)
using Element = Integer<long long, true>;
#else
using Element = Integer<Word, false>;
#endif

using Accumulator = Element::Accumulator;
using Arithmetic = Element::Arithmetic;
constexpr u32 ACCUMULATOR_ITEMSIZE = sizeof(Accumulator);

// Do what op says, unless it is SET.
__device__ __forceinline__ Accumulator combine(u64 op, Accumulator a, Accumulator b) {
    switch (op) {
        case SUM: return Arithmetic::add(a, b);
        case PROD: return Arithmetic::multiply(a, b);
        case MIN: return Arithmetic::minimum(a, b);
        default: return Arithmetic::maximum(a, b);
    }
}

__device__ __forceinline__ Word pack(Accumulator a, u64 divisor) {
    return Word(Element::narrow(divisor == 1 ? a : Arithmetic::divide(a, divisor)));
}

// A lane's eight consecutive accumulator elements of a block, packed as in memory.
using LaneAccumulators = LaneItems<Accumulator>;

// Combine a block of accumulator elements with the lane's eight values.
__device__ __forceinline__ void combine_lane(u64 op, const LaneValues& values, u8* block) {
    LaneAccumulators accumulators;
    if (op != SET) accumulators.load(block);
#pragma unroll
    for (u32 i = 0; i < LANE_COUNT; ++i) {
        const Accumulator value = Element::widen(values.value(i));
        accumulators.set(i, op == SET ? value : combine(op, accumulators.value(i), value));
    }
    accumulators.store(block);
}

// Round the lane's eight accumulator elements of a block to values.
__device__ __forceinline__ void pack_lane(const u8* block, u64 divisor, LaneValues& values) {
    LaneAccumulators accumulators;
    accumulators.load(block);
#pragma unroll
    for (u32 i = 0; i < LANE_COUNT; ++i) values.set(i, pack(accumulators.value(i), divisor));
}

__device__ __forceinline__ void combine_value(u64 op, Word value, u8* accumulators, u64 i) {
    u8* const address = accumulators + i * ACCUMULATOR_ITEMSIZE;
    const Accumulator widened = Element::widen(value);
    const Accumulator result = op == SET ? widened : combine(op, load_item<Accumulator>(address), widened);
    store_item<Accumulator>(address, result);
}

__device__ __forceinline__ void pack_value(const u8* accumulators, u8* values, u64 i, u64 divisor) {
    const Accumulator a = load_item<Accumulator>(accumulators + i * ACCUMULATOR_ITEMSIZE);
    store_value(values + i * ITEMSIZE, pack(a, divisor));
}
