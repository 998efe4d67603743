// Which implementations there are, and which of them this machine can run.

#include "codec.hpp"

namespace zipccl {

const Implementation* const* implementations() {
    static const Implementation* const best_first[] = {
#if defined(__x86_64__)
        &avx512,
        &avx2,
#endif
        &portable,
        nullptr,
    };
    return best_first;
}

}  // namespace zipccl
