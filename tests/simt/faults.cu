// Kernels for the test of the header: each is right, or wrong in one way, as its last argument says.

using u32 = unsigned int;
using u64 = unsigned long long;

// Reverse the words of a block.
extern "C" __global__ void reverse(const u32* source, u32* target, u64 synchronize) {
    __shared__ u32 words[1024];
    words[threadIdx.x] = source[blockIdx.x * blockDim.x + threadIdx.x];
    if (synchronize) __syncthreads();
    target[blockIdx.x * blockDim.x + threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}

// Reverse the words of a warp; a vote does not order memory.
extern "C" __global__ void reverse_warp(const u32* source, u32* target, u64 synchronize) {
    __shared__ u32 lanes[32];
    lanes[threadIdx.x] = source[threadIdx.x];
    if (synchronize) __syncwarp();
    else __any_sync(0xFFFFFFFF, 1);
    target[threadIdx.x] = lanes[31 - threadIdx.x];
}

// Write to a word that another lane reads before.
extern "C" __global__ void shift(u32* words, u64 synchronize) {
    __shared__ u32 lanes[33];
    lanes[threadIdx.x + 1] = words[threadIdx.x];
    if (threadIdx.x == 0) lanes[0] = 0;
    __syncwarp();
    const u32 before = lanes[threadIdx.x];
    if (synchronize) __syncwarp();
    lanes[threadIdx.x + 1] = before;
    __syncwarp();
    words[threadIdx.x] = lanes[threadIdx.x + 1];
}

extern "C" __global__ void vote(u32* target, u64 together) {
    u32 mask = 0;
    if (together || threadIdx.x % 2) mask = __ballot_sync(0xFFFFFFFF, threadIdx.x % 3 == 0);
    target[threadIdx.x] = mask;
}

extern "C" __global__ void vote_or_shuffle(u32* target, u64 together) {
    if (together || threadIdx.x < 16) {
        target[threadIdx.x] = __ballot_sync(0xFFFFFFFF, threadIdx.x < 5);
    } else {
        target[threadIdx.x] = __shfl_sync(0xFFFFFFFF, threadIdx.x, 0);
    }
}

extern "C" __global__ void vote_or_wait(u32* target, u64 together) {
    if (together || threadIdx.x < 16) target[threadIdx.x] = __ballot_sync(0xFFFFFFFF, threadIdx.x < 5);
    __syncthreads();
}

extern "C" __global__ void write_at(u32* target, u64 offset_nbytes) {
    *reinterpret_cast<u32*>(reinterpret_cast<char*>(target) + offset_nbytes) = 1;
}

extern "C" __global__ void read_vector_at(uint4* target, u64 offset_nbytes) {
    const uint4 four = *reinterpret_cast<const uint4*>(reinterpret_cast<char*>(target) + offset_nbytes);
    if (threadIdx.x == 0) target[0] = four;
}

// Wait until the block after this one has been there.
extern "C" __global__ void wait_for_next(u32* flags, u64 wait) {
    if (threadIdx.x == 0) flags[blockIdx.x] = 1;
    if (!wait) return;
    const volatile u32* next = flags + (blockIdx.x + 1) % gridDim.x;
    while (!__any_sync(0xFFFFFFFF, *next)) {
    }
}

extern "C" __global__ void together(u32* target) {
    const u32 lane = threadIdx.x;
    const u32 all = 0xFFFFFFFF;
    target[0 * 32 + lane] = __shfl_sync(all, lane * lane, 5);
    target[1 * 32 + lane] = __shfl_up_sync(all, lane, 3);
    target[2 * 32 + lane] = __shfl_down_sync(all, lane, 3);
    target[3 * 32 + lane] = __shfl_xor_sync(all, lane, 3);
    target[4 * 32 + lane] = __ballot_sync(all, lane % 5 == 0);
    target[5 * 32 + lane] = __reduce_add_sync(all, lane);
    target[6 * 32 + lane] = __reduce_max_sync(all, lane ^ 21);
    target[7 * 32 + lane] = __reduce_min_sync(all, lane + 7);
    target[8 * 32 + lane] = __reduce_or_sync(all, lane & 6);
    target[9 * 32 + lane] = __dp4a(0x04030201u, 0x01FF0203u, lane);
    target[10 * 32 + lane] = __byte_perm(0x33221100u, 0x77665544u, 0x7153u);
}
