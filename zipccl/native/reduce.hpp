// Reductions: widen values into an accumulator, combine further values with it, and round it to values once.
//
// Include it inside an anonymous namespace of one instruction set's file, after layout.hpp. The loops are plain C++ for
// the compiler to vectorise; without contraction to fused operations their results are the same everywhere.

// How an element type is accumulated: Stored is its bits, Accumulator what sums are held in.
template <class T>
struct Integer {
    using Stored = T;
    using Accumulator = T;
    static T widen(T value) { return value; }
    static T narrow(T value) { return value; }
};

struct Boolean : Integer<uint8_t> {
    static uint8_t widen(uint8_t value) { return value != 0; }
};

template <class To, class From>
inline To bit_cast(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

struct Single {
    using Stored = float;
    using Accumulator = float;
    static float widen(float value) { return value; }
    static float narrow(float value) { return value == value ? value : bit_cast<float>(0x7FC00000u); }
};

struct Double {
    using Stored = double;
    using Accumulator = double;
    static double widen(double value) { return value; }
    static double narrow(double value) { return value == value ? value : bit_cast<double>(0x7FF8000000000000u); }
};

struct Brain {
    using Stored = uint16_t;
    using Accumulator = float;
    static float widen(uint16_t value) { return bit_cast<float>(uint32_t(value) << 16); }
    static uint16_t narrow(float value) {
        const uint32_t bits = bit_cast<uint32_t>(value);
        const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        return uint16_t((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
    }
};

// A float of fewer exponent and mantissa bits than binary32, and of no more than 16 bits in all. Without infinity
// (float8_e4m3fn) only the pattern of all ones is NaN, and what is too large becomes it.
template <class Bits, int EXPONENT_BITS, int MANTISSA_BITS, bool HAS_INFINITY>
struct Small {
    using Stored = Bits;
    using Accumulator = float;

    static constexpr int SHIFT = 23 - MANTISSA_BITS;
    static constexpr uint32_t SIGN = 1u << (EXPONENT_BITS + MANTISSA_BITS);
    static constexpr uint32_t BIAS = (1u << (EXPONENT_BITS - 1)) - 1;
    static constexpr uint32_t INFINITE = ((1u << EXPONENT_BITS) - 1) << MANTISSA_BITS;
    static constexpr uint32_t QUIET_NAN = HAS_INFINITY ? INFINITE | 1u << (MANTISSA_BITS - 1) : SIGN - 1;
    // The greatest magnitude that is not NaN.
    static constexpr uint32_t GREATEST = HAS_INFINITY ? INFINITE : SIGN - 2;

    static float widen(Bits value) {
        const uint32_t magnitude = value & (SIGN - 1);
        // The product with a power of two is exact and makes subnormal values normal.
        const float scaled = bit_cast<float>(magnitude << SHIFT) * bit_cast<float>((254 - BIAS) << 23);
        uint32_t bits = bit_cast<uint32_t>(scaled);
        if (HAS_INFINITY) {
            bits |= magnitude >= INFINITE ? 0x7F800000 : 0;
        } else {
            bits = magnitude == QUIET_NAN ? 0x7FC00000 : bits;
        }
        return bit_cast<float>(bits | uint32_t(value & SIGN) << (31 - EXPONENT_BITS - MANTISSA_BITS));
    }

    static Bits narrow(float value) {
        const uint32_t bits = bit_cast<uint32_t>(value);
        const uint32_t magnitude = bits & 0x7FFFFFFF;
        const uint32_t sign = bits >> (31 - EXPONENT_BITS - MANTISSA_BITS) & SIGN;
        constexpr uint32_t SMALLEST_NORMAL = (128 - BIAS) << 23;
        // Adding a float whose last bit is the result's subnormal unit rounds to that unit.
        constexpr uint32_t UNIT = SMALLEST_NORMAL + ((23 - MANTISSA_BITS) << 23);
        const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + bit_cast<float>(UNIT)) - UNIT;
        const uint32_t odd = magnitude >> SHIFT & 1;
        const uint32_t rebiased = magnitude - ((127 - BIAS) << 23) + (1u << (SHIFT - 1)) - 1 + odd;
        const uint32_t normal = rebiased >> SHIFT;
        uint32_t result = magnitude < SMALLEST_NORMAL ? subnormal : normal;
        result = result > GREATEST ? (HAS_INFINITY ? INFINITE : QUIET_NAN) : result;
        result |= sign;
        const bool nan = magnitude > 0x7F800000 || (!HAS_INFINITY && (result & (SIGN - 1)) == QUIET_NAN);
        return Bits(nan ? QUIET_NAN : result);
    }
};

// Unsigned, because signed overflow is undefined, and not narrower than int, to which it would be promoted.
template <class T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

template <class T>
inline T add(T a, T value) { return T(Wrapping<T>(a) + Wrapping<T>(value)); }
template <class T>
inline T multiply(T a, T value) { return T(Wrapping<T>(a) * Wrapping<T>(value)); }
inline float add(float a, float value) { return a + value; }
inline float multiply(float a, float value) { return a * value; }
inline double add(double a, double value) { return a + value; }
inline double multiply(double a, double value) { return a * value; }

// Divide toward zero in 64 bits, which hold the divisor whatever the type is.
template <class T>
inline T divide(T a, uint64_t divisor) {
    return std::is_signed_v<T> ? T(int64_t(a) / int64_t(divisor)) : T(uint64_t(a) / divisor);
}
inline float divide(float a, uint64_t divisor) { return a / float(divisor); }
inline double divide(double a, uint64_t divisor) { return a / double(divisor); }

template <class T>
inline T minimum(T a, T value) { return value < a ? value : a; }
template <class T>
inline T maximum(T a, T value) { return value > a ? value : a; }

// The minimum and maximum of IEEE 754-2019: NaN if there is one, and -0 is less than +0.
template <class Bits, class Float>
inline Float float_minimum(Float a, Float value) {
    const Float zeros = bit_cast<Float>(Bits(bit_cast<Bits>(a) | bit_cast<Bits>(value)));  // equal, or -0 and +0
    const Float least = a < value ? a : a == value ? zeros : value;
    return a != a ? a : least;
}
template <class Bits, class Float>
inline Float float_maximum(Float a, Float value) {
    const Float zeros = bit_cast<Float>(Bits(bit_cast<Bits>(a) & bit_cast<Bits>(value)));
    const Float greatest = a > value ? a : a == value ? zeros : value;
    return a != a ? a : greatest;
}
inline float minimum(float a, float value) { return float_minimum<uint32_t>(a, value); }
inline float maximum(float a, float value) { return float_maximum<uint32_t>(a, value); }
inline double minimum(double a, double value) { return float_minimum<uint64_t>(a, value); }
inline double maximum(double a, double value) { return float_maximum<uint64_t>(a, value); }

template <class E>
void widen_values(const uint8_t* __restrict source, uint8_t* __restrict accumulator, size_t count) {
    using Stored = typename E::Stored;
    using Accumulator = typename E::Accumulator;
    for (size_t i = 0; i < count; ++i) {
        store<Accumulator>(accumulator + i * sizeof(Accumulator), E::widen(load<Stored>(source + i * sizeof(Stored))));
    }
}

template <class E, Op OP>
void accumulate_values(const uint8_t* __restrict source, uint8_t* __restrict accumulator, size_t count) {
    using Stored = typename E::Stored;
    using Accumulator = typename E::Accumulator;
    for (size_t i = 0; i < count; ++i) {
        const Accumulator value = E::widen(load<Stored>(source + i * sizeof(Stored)));
        const Accumulator a = load<Accumulator>(accumulator + i * sizeof(Accumulator));
        const Accumulator result = OP == SUM    ? add(a, value)
                                   : OP == PROD ? multiply(a, value)
                                   : OP == MIN  ? minimum(a, value)
                                                : maximum(a, value);
        store(accumulator + i * sizeof(Accumulator), result);
    }
}

template <class E>
void pack_values(const uint8_t* __restrict accumulator, uint8_t* __restrict target, size_t count, uint64_t divisor) {
    using Stored = typename E::Stored;
    using Accumulator = typename E::Accumulator;
    for (size_t i = 0; i < count; ++i) {
        Accumulator a = load<Accumulator>(accumulator + i * sizeof(Accumulator));
        if (divisor != 1) a = divide(a, divisor);
        store<Stored>(target + i * sizeof(Stored), E::narrow(a));
    }
}

// One dtype's functions, to choose from by the dtype's code.
struct Reduction {
    size_t itemsize;  // of accumulators
    void (*accumulate[5])(const uint8_t* source, uint8_t* accumulator, size_t count);
    void (*pack)(const uint8_t* accumulator, uint8_t* target, size_t count, uint64_t divisor);
};

template <class E>
constexpr Reduction REDUCTION = {
    sizeof(typename E::Accumulator),
    {accumulate_values<E, SUM>, accumulate_values<E, PROD>, accumulate_values<E, MIN>, accumulate_values<E, MAX>,
     widen_values<E>},
    pack_values<E>,
};

// On values 0 and 1, or is the maximum and and the minimum.
constexpr Reduction BOOLEAN = {
    1,
    {accumulate_values<Boolean, MAX>, accumulate_values<Boolean, MIN>, accumulate_values<Boolean, MIN>,
     accumulate_values<Boolean, MAX>, widen_values<Boolean>},
    pack_values<Boolean>,
};

const Reduction& reduction_of(int dtype) {
    switch (dtype) {
        case BFLOAT16: return REDUCTION<Brain>;
        case FLOAT16: return REDUCTION<Small<uint16_t, 5, 10, true>>;
        case FLOAT32: return REDUCTION<Single>;
        case FLOAT64: return REDUCTION<Double>;
        case FLOAT8_E4M3FN: return REDUCTION<Small<uint8_t, 4, 3, false>>;
        case FLOAT8_E5M2: return REDUCTION<Small<uint8_t, 5, 2, true>>;
        case BOOL: return BOOLEAN;
        case INT8: return REDUCTION<Integer<int8_t>>;
        case INT16: return REDUCTION<Integer<int16_t>>;
        case UINT16: return REDUCTION<Integer<uint16_t>>;
        case INT32: return REDUCTION<Integer<int32_t>>;
        case UINT32: return REDUCTION<Integer<uint32_t>>;
        case INT64: return REDUCTION<Integer<int64_t>>;
        case UINT64: return REDUCTION<Integer<uint64_t>>;
        default: return REDUCTION<Integer<uint8_t>>;
    }
}

void widen(int dtype, const uint8_t* source, uint8_t* accumulator, size_t count) {
    reduction_of(dtype).accumulate[SET](source, accumulator, count);
}

void accumulate(int dtype, int op, const uint8_t* source, uint8_t* accumulator, size_t count) {
    reduction_of(dtype).accumulate[op](source, accumulator, count);
}

void pack(int dtype, const uint8_t* accumulator, uint8_t* target, size_t count, uint64_t divisor) {
    reduction_of(dtype).pack(accumulator, target, count, divisor);
}
