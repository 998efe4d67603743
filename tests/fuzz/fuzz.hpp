// What the fuzz targets share: buffers of exact sizes, the implementations of this machine, and what to do when two of
// them differ.

#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "../../zipccl/native/codec.hpp"

namespace fuzz {

using zipccl::Implementation;

// As in zipccl/codec/wire.py.
struct Type {
    const char* name;
    int code;
    size_t itemsize;
    int exponent_bits;
    int mantissa_bits;

    bool is_float() const { return exponent_bits > 0; }
};

constexpr Type TYPES[] = {
    {"bfloat16", zipccl::BFLOAT16, 2, 8, 7},
    {"float16", zipccl::FLOAT16, 2, 5, 10},
    {"float32", zipccl::FLOAT32, 4, 8, 23},
    {"float64", zipccl::FLOAT64, 8, 11, 52},
    {"float8_e4m3fn", zipccl::FLOAT8_E4M3FN, 1, 4, 3},
    {"float8_e5m2", zipccl::FLOAT8_E5M2, 1, 5, 2},
    {"bool", zipccl::BOOL, 1, 0, 0},
    {"int8", zipccl::INT8, 1, 0, 0},
    {"uint8", zipccl::UINT8, 1, 0, 0},
    {"int16", zipccl::INT16, 2, 0, 0},
    {"uint16", zipccl::UINT16, 2, 0, 0},
    {"int32", zipccl::INT32, 4, 0, 0},
    {"uint32", zipccl::UINT32, 4, 0, 0},
    {"int64", zipccl::INT64, 8, 0, 0},
    {"uint64", zipccl::UINT64, 8, 0, 0},
};
constexpr size_t TYPE_COUNT = sizeof TYPES / sizeof TYPES[0];

// Bytes on the heap that end where their allocation ends, so that AddressSanitizer notices every access behind them;
// they begin at a multiple of 16 plus offset.
class Exact {
  public:
    Exact(size_t nbytes, size_t offset, uint8_t filler) : memory(new uint8_t[offset + nbytes]), start(offset),
                                                          nbytes(nbytes) {
        if (nbytes) std::memset(data(), filler, nbytes);
    }
    Exact(const uint8_t* content, size_t nbytes, size_t offset) : Exact(nbytes, offset, 0) {
        if (nbytes) std::memcpy(data(), content, nbytes);
    }

    uint8_t* data() const { return memory.get() + start; }
    size_t size() const { return nbytes; }

  private:
    std::unique_ptr<uint8_t[]> memory;
    size_t start;
    size_t nbytes;
};

__attribute__((format(printf, 2, 3))) inline void expect(bool holds, const char* format, ...) {
    if (holds) return;
    std::va_list arguments;
    va_start(arguments, format);
    std::fputs("\n== FINDING: ", stderr);
    std::vfprintf(stderr, format, arguments);
    std::fputs("\n", stderr);
    va_end(arguments);
    std::abort();
}

inline void expect_equal(const uint8_t* found, const uint8_t* expected, size_t nbytes, const char* name,
                         const char* what) {
    if (nbytes == 0 || std::memcmp(found, expected, nbytes) == 0) return;
    for (size_t i = 0; i < nbytes; ++i) {
        expect(found[i] == expected[i], "%s: %s: byte %zu of %zu is %02x; expected %02x", name, what, i, nbytes,
               found[i], expected[i]);
    }
}

// As accumulator_itemsize in zipccl/codec/base.py.
inline size_t accumulator_itemsize(const Type& type) {
    return type.is_float() && type.itemsize < 4 ? 4 : type.itemsize;
}

template <class Float>
bool equal_or_nan(const uint8_t* a, const uint8_t* b) {
    Float value_a, value_b;
    std::memcpy(&value_a, a, sizeof value_a);
    std::memcpy(&value_b, b, sizeof value_b);
    return std::memcmp(a, b, sizeof(Float)) == 0 || (value_a != value_a && value_b != value_b);
}

// Which NaN an operation on NaNs gives is the compiler's choice; packing makes one of all.
inline void expect_equal_accumulators(const Type& type, const Exact& found, const Exact& expected,
                                      const char* name, const char* what) {
    if (!type.is_float()) return expect_equal(found.data(), expected.data(), found.size(), name, what);
    const size_t itemsize = accumulator_itemsize(type);
    for (size_t i = 0; i < found.size(); i += itemsize) {
        const bool equal = itemsize == 8 ? equal_or_nan<double>(found.data() + i, expected.data() + i)
                                         : equal_or_nan<float>(found.data() + i, expected.data() + i);
        expect(equal, "%s: %s %s: value %zu of %zu differs", name, what, type.name, i / itemsize,
               found.size() / itemsize);
    }
}

// How many threads an implementation is given: not the same for all, so that what they do must not depend on it.
inline int threads_of(const Implementation* implementation) {
    return !std::strcmp(implementation->name, "portable") ? 1 : 3;
}

inline const std::vector<const Implementation*>& implementations() {
    static const std::vector<const Implementation*> supported = [] {
        std::vector<const Implementation*> list;
        for (auto each = zipccl::implementations(); *each; ++each) {
            std::fprintf(stderr, "# %s: %s\n", (*each)->name, (*each)->supported() ? "fuzzed" : "not supported here");
            if ((*each)->supported()) list.push_back(*each);
        }
        return list;
    }();
    return supported;
}

// Encode values with every implementation and decode them again: all bodies must be equal, all values the given ones.
inline void check_round_trip(const Type& type, const Exact& values, size_t count, size_t bound, size_t offset) {
    std::unique_ptr<Exact> first;
    for (const Implementation* each : implementations()) {
        const Exact room(bound, offset, 0xCC);
        const size_t nbytes = each->encode_body(type.code, values.data(), count, room.data(), threads_of(each));
        expect(nbytes <= values.size(), "%s: %zu values of %s take %zu bytes", each->name, count, type.name, nbytes);
        auto body = std::make_unique<Exact>(room.data(), nbytes, offset);
        if (!first) first = std::move(body);
        expect(nbytes == first->size(), "%s: encodes %zu values of %s to %zu bytes; the first one to %zu", each->name,
               count, type.name, nbytes, first->size());
        expect_equal(room.data(), first->data(), nbytes, each->name, "encoding");
        if (nbytes == values.size()) {
            expect_equal(room.data(), values.data(), nbytes, each->name, "the raw layout");
            continue;
        }
        const Exact target(values.size(), offset, 0x33);
        const int status = each->decode_body(type.code, first->data(), nbytes, target.data(), count,
                                              threads_of(each));
        expect(status == zipccl::OK, "%s: refuses its own body of %s with status %d", each->name, type.name, status);
        expect_equal(target.data(), values.data(), values.size(), each->name, "decoding what was encoded");
    }
}

}  // namespace fuzz
