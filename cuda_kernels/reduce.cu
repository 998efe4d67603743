// Reductions of arrays: a thread for eight consecutive values, as many thread blocks as these need.

#include "reduce.cuh"

// The first of the eight values of the calling thread.
__device__ __forceinline__ u64 first_value() { return (u64(blockIdx.x) * THREADS + threadIdx.x) * LANE_COUNT; }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    accumulate_values(const u8* values, u8* accumulators, u64 count, u64 op) {
    const u64 first = first_value();
    const u64 end = count - first < LANE_COUNT ? count : first + LANE_COUNT;
    for (u64 i = first; i < end && first < count; ++i) {
        combine_value(op, load_value(values + i * ITEMSIZE), accumulators, i);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    pack_values(const u8* accumulators, u8* values, u64 count, u64 divisor) {
    const u64 first = first_value();
    const u64 end = count - first < LANE_COUNT ? count : first + LANE_COUNT;
    for (u64 i = first; i < end && first < count; ++i) pack_value(accumulators, values, i, divisor);
}
