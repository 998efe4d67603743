// The native codec as a program, for processors that are emulated; tests/unit/foreign.py talks with it.
//
//     codec_main            print the implementations that this processor can run, best first, one a line
//     codec_main NAME       serve that implementation
//     codec_main best       serve the first of them
//
// A request on standard input is a struct Request, the bytes of its source, and those of its second operand; the
// answer is a u64, the size or status that the function returned, and the bytes that it wrote, with a u64 before them
// that tells how many.

#include <cstdio>
#include <cstring>
#include <memory>

#include "../../zipccl/native/codec.hpp"

namespace {

using zipccl::Implementation;

struct Request {
    uint64_t function;  // e, d, r, w, a, p as in main
    uint64_t dtype;
    uint64_t op;
    uint64_t count;
    uint64_t divisor;
    uint64_t values_nbytes;
    uint64_t source_nbytes;
    uint64_t second_nbytes;  // an accumulator that is added to
    uint64_t target_nbytes;  // the room for what is written
};

struct Buffer {
    std::unique_ptr<uint8_t[]> bytes;
    explicit Buffer(size_t nbytes) : bytes(new uint8_t[nbytes]) {}
    uint8_t* data() { return bytes.get(); }
    bool read(size_t nbytes) { return std::fread(data(), 1, nbytes, stdin) == nbytes; }
};

const Implementation* implementation_named(const char* name) {
    for (auto each = zipccl::implementations(); *each; ++each) {
        if ((*each)->supported() && (!std::strcmp(name, "best") || !std::strcmp(name, (*each)->name))) return *each;
    }
    return nullptr;
}

bool serve(const Implementation& codec, const Request& request) {
    const int dtype = int(request.dtype);
    const size_t count = request.count;
    Buffer source(request.source_nbytes);
    Buffer target(request.target_nbytes);
    if (!source.read(request.source_nbytes) || !target.read(request.second_nbytes)) return false;
    uint64_t result = 0;
    uint64_t written = request.target_nbytes;
    switch (request.function) {
        case 'e': result = written = codec.encode_body(dtype, source.data(), count, target.data(), 1); break;
        case 'd':
            result = codec.decode_body(dtype, source.data(), request.source_nbytes, target.data(), count, 1);
            if (result != zipccl::OK) written = 0;
            break;
        case 'r':
            result = codec.decode_reduce(dtype, int(request.op), source.data(), request.source_nbytes, target.data(),
                                         count, 1);
            break;
        case 'w': codec.widen(dtype, source.data(), target.data(), count); break;
        case 'a': codec.accumulate(dtype, int(request.op), source.data(), target.data(), count); break;
        case 'k': {  // writes the values, and the body behind them
            uint8_t* const body = target.data() + request.values_nbytes;
            result = codec.pack_encode(dtype, source.data(), count, request.divisor, target.data(), body, 1);
            written = request.values_nbytes + result;
            break;
        }
        case 'p': codec.pack(dtype, source.data(), target.data(), count, request.divisor); break;
        default: return false;
    }
    const uint64_t head[2] = {result, written};
    return std::fwrite(head, sizeof head, 1, stdout) == 1 &&
           std::fwrite(target.data(), 1, written, stdout) == written && std::fflush(stdout) == 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        for (auto each = zipccl::implementations(); *each; ++each) {
            if ((*each)->supported()) std::puts((*each)->name);
        }
        return 0;
    }
    const Implementation* const codec = implementation_named(argv[1]);
    if (!codec) {
        std::fprintf(stderr, "codec_main: this processor cannot run %s\n", argv[1]);
        return 2;
    }
    Request request;
    while (std::fread(&request, sizeof request, 1, stdin) == 1) {
        if (!serve(*codec, request)) return 1;
    }
    return 0;
}
