// Reductions of arrays: a warp for a block of 256 values, of which the last may be less, and as many thread blocks as
// these need.

#include "reduce.cuh"

// The number of the calling warp's block.
__device__ __forceinline__ u64 block_index() { return u64(blockIdx.x) * WARPS + warp_index(); }

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    accumulate_values(const u8* values, u8* accumulators, u64 count, u64 op) {
    const u64 first = block_index() * BLOCK_COUNT;
    if (first + BLOCK_COUNT <= count) {
        LaneValues some;
        some.load(values + first * ITEMSIZE);
        combine_lane(op, some, accumulators + first * ACCUMULATOR_ITEMSIZE);
    } else {
        for (u64 i = first + lane_index(); i < count; i += LANES) {
            combine_value(op, load_value(values + i * ITEMSIZE), accumulators, i);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    pack_values(const u8* accumulators, u8* values, u64 count, u64 divisor) {
    const u64 first = block_index() * BLOCK_COUNT;
    if (first + BLOCK_COUNT <= count) {
        LaneValues some;
        pack_lane(accumulators + first * ACCUMULATOR_ITEMSIZE, divisor, some);
        some.store(values + first * ITEMSIZE);
    } else {
        for (u64 i = first + lane_index(); i < count; i += LANES) pack_value(accumulators, values, i, divisor);
    }
}
