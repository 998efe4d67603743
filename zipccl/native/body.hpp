// The codec of all dtypes for any instruction set. Include it inside an anonymous namespace of one instruction set's
// file, after layout.hpp, rows.hpp, kernels.hpp and reduce.hpp.

#include "shares.hpp"
#include "encoder.hpp"
#include "decoder.hpp"

// Call a function of an element type with that of a dtype's code.
template <class Call>
inline auto for_dtype(int dtype, Call call) {
    switch (dtype) {
        case BFLOAT16: return call(Bfloat16{});
        case FLOAT16: return call(Float16{});
        case FLOAT32: return call(Float32{});
        case FLOAT64: return call(Float64{});
        case FLOAT8_E4M3FN: return call(Float8E4M3fn{});
        case FLOAT8_E5M2: return call(Float8E5M2{});
        case INT16: case UINT16: return call(Whole<uint16_t>{});
        case INT32: case UINT32: return call(Whole<uint32_t>{});
        case INT64: case UINT64: return call(Whole<uint64_t>{});
        default: return call(Whole<uint8_t>{});
    }
}

template <class Kernels>
size_t encode_body_of(int dtype, const uint8_t* source, size_t count, uint8_t* body, int threads) {
    const Input input = {const_cast<uint8_t*>(source)};  // which nothing but pack writes to
    return for_dtype(dtype, [=](auto type) { return encode_body<Kernels, decltype(type)>(input, count, body, threads); });
}

template <class Kernels>
size_t pack_encode_of(int dtype, const uint8_t* accumulator, size_t count, uint64_t divisor, uint8_t* target,
                      uint8_t* body, int threads) {
    const Reduction& reduction = reduction_of(dtype);
    const Input input = {target, accumulator, reduction.itemsize, divisor, reduction.pack};
    return for_dtype(dtype, [=](auto type) { return encode_body<Kernels, decltype(type)>(input, count, body, threads); });
}

template <class Kernels>
Status decode_to(int dtype, const uint8_t* body, size_t nbytes, size_t count, Output output, int threads) {
    return for_dtype(dtype, [=](auto type) {
        return decode_tiles<Kernels, decltype(type)>(body, nbytes, count, output, threads);
    });
}

template <class Kernels>
Status decode_body_of(int dtype, const uint8_t* body, size_t nbytes, uint8_t* target, size_t count, int threads) {
    const size_t itemsize = for_dtype(dtype, [](auto type) { return ITEMSIZE<decltype(type)>; });
    return decode_to<Kernels>(dtype, body, nbytes, count, {target, itemsize}, threads);
}

template <class Kernels>
Status decode_reduce_of(int dtype, int op, const uint8_t* body, size_t nbytes, uint8_t* accumulator, size_t count,
                        int threads) {
    const Reduction& reduction = reduction_of(dtype);
    const Output output = {accumulator, reduction.itemsize, reduction.accumulate[op]};
    return decode_to<Kernels>(dtype, body, nbytes, count, output, threads);
}
