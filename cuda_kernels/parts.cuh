// Several parts, each an array with a body of its own, are done by the same launch. A part has a work item for each of
// its tiles, or one if it has none; a thread block does one.

#pragma once

#include "format.cuh"

// Find the last part that starts at work or before it. Parts' first works are ascending, the first one's is 0.
template <class Part>
__device__ __forceinline__ u64 part_of(const Part* parts, u64 part_count, u64 work) {
    u64 low = 0;
    u64 high = part_count;
    while (high - low > 1) {
        const u64 middle = low + (high - low) / 2;
        if (parts[middle].first_work <= work) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}
