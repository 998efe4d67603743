// Runs kernels that are compiled with simt.hpp: CUDA's threads as fibers of one thread of the CPU.
//
// A thread runs until it waits: for its warp in a *_sync function, or for its block in __syncthreads. Which thread of
// those that can goes on next is drawn at random, if wanted. A few thread blocks are alive at a time and take turns, so
// that one may wait for another. Every access to memory is checked:
//
// - it is inside memory that was allocated for the device, in shared memory or on the thread's own stack;
// - it is aligned as the type demands;
// - in shared memory, no other thread of the block has accessed the same byte, one of the two writing, unless there
//   was a __syncthreads between, or a __syncwarp for two lanes of a warp. (Shuffles and votes do not order memory.)
//
// And of synchronisation: the lanes of a *_sync function's mask all come to the same function with the same mask, and
// what waits does not wait for ever.
//
// A launch ends at the first fault, whose description it returns.

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cfenv>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "simt.hpp"

#if !defined(__x86_64__)
#error "simt.cpp switches between the stacks of an x86-64 processor"
#endif

// Save the callee's registers and stack pointer, and go on at another stack pointer.
extern "C" void simt_switch(void** save, void* load);
asm(R"(
.text
.globl simt_switch
simt_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

namespace {

constexpr unsigned LANES = 32;
constexpr size_t STACK_NBYTES = 64 << 10;
constexpr unsigned ALIVE_BLOCKS = 3;
constexpr unsigned TURN_STEPS = 2000;        // of a block before the next one's turn
constexpr uint64_t MAX_STEPS = 20'000'000;  // without the end of a block
constexpr uint8_t GARBAGE = 0xA5;
constexpr unsigned MAX_ARGUMENTS = 16;
using Kernel = void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

enum class State { READY, IN_WARP, IN_BLOCK, DONE };

struct Thread {
    void* stack_pointer;
    char* stack;
    State state;
    simt::Together what;
    unsigned mask;
    unsigned argument;
    uint64_t value;
    uint64_t result;
};

// When an access happened, as far as order matters: how often the block, and the warp, had been synchronised.
struct Moment {
    uint32_t in_block;
    uint32_t in_warp;
};

constexpr uint16_t NOBODY = 0xFFFF;
constexpr uint16_t SOME_LANES = 0x8000;   // plus the warp's number
constexpr uint16_t SOME_WARPS = 0x9000;

// Who last wrote and read a byte of shared memory.
struct Shadow {
    uint16_t writer = NOBODY;
    uint16_t reader = NOBODY;
    Moment written{};
    Moment read{};
};

struct Block {
    unsigned index;
    unsigned running;     // threads that are not done
    uint32_t synchronized = 0;
    std::vector<Thread> threads;
    std::vector<uint32_t> warp_synchronized;
    std::vector<char> shared;
    std::vector<Shadow> shadow;
};

struct Launch {
    Kernel kernel;
    const uint64_t* arguments;
    unsigned grid;
    unsigned block;
    bool shuffled;
    std::mt19937_64 random;
    char* shared;
    size_t shared_nbytes;
    std::string fault;
};

std::map<uintptr_t, size_t> allocations;
bool any_memory = false;
Launch* launch;
Block* block;
unsigned current;  // thread of the block; its stack's bounds below
uintptr_t stack_start;
uintptr_t recent_start, recent_stop;
void* scheduler_stack_pointer;

std::vector<char*> free_stacks;

char* take_stack() {
    if (free_stacks.empty()) {
        void* stack = mmap(nullptr, STACK_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) std::abort();
        return static_cast<char*>(stack);
    }
    char* const stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

void leave_thread() { simt_switch(&block->threads[current].stack_pointer, scheduler_stack_pointer); }

// Describe a fault, with the addresses of the calls that led to it, and end the launch.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void fail(const char* format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char where[100];
    snprintf(where, sizeof where, "thread %u of block %u: ", current, block->index);
    launch->fault = std::string(where) + text;
    for (;;) leave_thread();
}

// Say where a fault is, as file+offset for addr2line.
std::string place_of(void* address) {
    Dl_info info;
    char text[300] = "";
    if (dladdr(address, &info)) {
        snprintf(text, sizeof text, " at %s+0x%zx", info.dli_fname,
                 static_cast<size_t>(static_cast<char*>(address) - static_cast<char*>(info.dli_fbase)) - 1);
    }
    return text;
}

bool ordered(uint16_t other, Moment then, uint16_t self) {
    if (other == NOBODY || other == self || then.in_block != block->synchronized) return true;
    const unsigned warp = self / LANES;
    const bool same_warp = other < SOME_LANES ? other / LANES == warp : other == SOME_LANES + warp;
    return same_warp && then.in_warp != block->warp_synchronized[warp];
}

void access_shared(size_t offset, size_t nbytes, bool writes, void* where) {
    const uint16_t self = static_cast<uint16_t>(current);
    const Moment now = {block->synchronized, block->warp_synchronized[current / LANES]};
    for (size_t i = offset; i < offset + nbytes; ++i) {
        Shadow& byte = block->shadow[i];
        if (!ordered(byte.writer, byte.written, self) || (writes && !ordered(byte.reader, byte.read, self))) {
            fail("%zu bytes at offset %zu of shared memory are %s while another thread %s them, without "
                 "synchronisation%s",
                 nbytes, offset, writes ? "written" : "read", writes ? "uses" : "writes", place_of(where).c_str());
        }
        if (writes) {
            byte.writer = self;
            byte.written = now;
        } else if (byte.reader == NOBODY || byte.read.in_block != now.in_block || byte.reader == self) {
            byte.reader = self;
            byte.read = now;
        } else {
            const uint16_t lanes = static_cast<uint16_t>(SOME_LANES + current / LANES);
            const bool same_warp = byte.reader < SOME_LANES ? byte.reader / LANES == current / LANES : byte.reader == lanes;
            byte.reader = same_warp ? lanes : SOME_WARPS;
            byte.read = now;
        }
    }
}

inline void access(const void* address, size_t nbytes, size_t alignment, bool writes, void* where) {
    if (!block) return;  // code that runs when a module is loaded
    const uintptr_t start = reinterpret_cast<uintptr_t>(address);
    if (start - stack_start < STACK_NBYTES) return;
    if (start % alignment) {
        fail("address %#zx of %zu bytes is not aligned%s", start, nbytes, place_of(where).c_str());
    }
    const size_t in_shared = start - reinterpret_cast<uintptr_t>(launch->shared);
    if (in_shared < launch->shared_nbytes) return access_shared(in_shared, nbytes, writes, where);
    if (start >= recent_start && start + nbytes <= recent_stop) return;
    auto after = allocations.upper_bound(start);
    if (after != allocations.begin()) {
        const auto& [first, size] = *std::prev(after);
        if (start - first + nbytes <= size) {
            recent_start = first;
            recent_stop = first + size;
            return;
        }
    }
    if (any_memory) return;
    fail("%zu bytes are %s at %#zx, outside all memory of the device%s", nbytes, writes ? "written" : "read", start,
         place_of(where).c_str());
}

void start_thread() {
    const uint64_t* const a = launch->arguments;
    launch->kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
    block->threads[current].state = State::DONE;
    block->running -= 1;
    leave_thread();
}

void prepare(Thread& thread) {
    thread.stack = take_stack();
    thread.state = State::READY;
    void** top = reinterpret_cast<void**>(thread.stack + STACK_NBYTES);
    *--top = nullptr;  // so that the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(start_thread);
    for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that simt_switch restores
    thread.stack_pointer = top;
}

std::unique_ptr<Block> make_block(unsigned index) {
    auto made = std::make_unique<Block>();
    made->index = index;
    made->running = launch->block;
    made->threads.resize(launch->block);
    made->warp_synchronized.assign((launch->block + LANES - 1) / LANES, 0);
    made->shared.assign(launch->shared_nbytes, static_cast<char>(GARBAGE));
    made->shadow.resize(launch->shared_nbytes);
    for (Thread& thread : made->threads) prepare(thread);
    return made;
}

// What the lanes of a mask get, when all of them have come.
void exchange(Thread* lanes, unsigned mask, simt::Together what) {
    using simt::Together;
    uint64_t joined = 0;
    bool first = true;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if (!(mask >> lane & 1)) continue;
        const uint64_t value = lanes[lane].value;
        const unsigned narrow = static_cast<unsigned>(value);
        const unsigned so_far = static_cast<unsigned>(joined);
        switch (what) {
            case Together::BALLOT: joined |= uint64_t(value != 0) << lane; break;
            case Together::ANY: joined |= value != 0; break;
            case Together::ALL: joined = first ? value != 0 : joined & (value != 0); break;
            case Together::ADD: joined = so_far + narrow; break;
            case Together::MIN: joined = first ? narrow : std::min(so_far, narrow); break;
            case Together::MAX: joined = std::max(so_far, narrow); break;
            case Together::AND: joined = first ? narrow : so_far & narrow; break;
            case Together::OR: joined = so_far | narrow; break;
            case Together::XOR: joined = so_far ^ narrow; break;
            default: break;
        }
        first = false;
    }
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if (!(mask >> lane & 1)) continue;
        Thread& self = lanes[lane];
        unsigned from = lane;
        switch (what) {
            case Together::SHUFFLE: from = self.argument % LANES; break;
            case Together::SHUFFLE_UP: from = lane < self.argument ? lane : lane - self.argument; break;
            case Together::SHUFFLE_DOWN: from = lane + self.argument < LANES ? lane + self.argument : lane; break;
            case Together::SHUFFLE_XOR: from = lane ^ self.argument; break;
            default: self.result = joined; continue;
        }
        if (!(mask >> (from % LANES) & 1)) fail("lane %u reads from lane %u, which is not in the mask %#x", lane, from, mask);
        self.result = lanes[from % LANES].value;
    }
}

bool release_block() {
    for (const Thread& thread : block->threads) {
        if (thread.state != State::IN_BLOCK && thread.state != State::DONE) return false;
    }
    for (Thread& thread : block->threads) {
        if (thread.state == State::IN_BLOCK) thread.state = State::READY;
    }
    block->synchronized += 1;
    return true;
}

// Let a thread run until it waits.
void resume(unsigned index) {
    current = index;
    stack_start = reinterpret_cast<uintptr_t>(block->threads[index].stack);
    simt_switch(&scheduler_stack_pointer, block->threads[index].stack_pointer);
}

std::string waiting() {
    std::string text = "what waits will wait for ever; the first are:";
    unsigned told = 0;
    for (unsigned i = 0; i < block->threads.size() && told < 4; ++i) {
        const Thread& thread = block->threads[i];
        if (thread.state == State::DONE) continue;
        const char* const place = thread.state == State::IN_BLOCK ? "__syncthreads" : "a *_sync function";
        text += " thread " + std::to_string(i) + " in " + place + ";";
        told += 1;
    }
    return text;
}

// Give the block a turn; return the number of steps.
uint64_t take_turn() {
    const unsigned count = static_cast<unsigned>(block->threads.size());
    const unsigned warps = (count + LANES - 1) / LANES;
    uint64_t steps = 0;
    std::vector<unsigned> order(LANES);
    while (block->running && steps < TURN_STEPS) {
        const uint64_t before = steps;
        const unsigned offset = launch->shuffled ? static_cast<unsigned>(launch->random() % warps) : 0;
        for (unsigned i = 0; i < warps; ++i) {
            const unsigned warp = (i + offset) % warps;
            const unsigned lanes = std::min(LANES, count - warp * LANES);
            order.resize(lanes);
            for (unsigned lane = 0; lane < lanes; ++lane) order[lane] = warp * LANES + lane;
            // A warp goes on as far as it can, or for a while that differs.
            unsigned rounds = launch->shuffled ? 1 + static_cast<unsigned>(launch->random() % 64) : 256;
            for (bool any = true; any && rounds; --rounds) {
                any = false;
                if (launch->shuffled) std::shuffle(order.begin(), order.end(), launch->random);
                for (const unsigned index : order) {
                    if (block->threads[index].state != State::READY) continue;
                    resume(index);
                    if (!launch->fault.empty()) return steps;
                    any = true;
                    steps += 1;
                }
            }
        }
        if (steps == before && !release_block()) {
            current = 0;
            launch->fault = "block " + std::to_string(block->index) + ": " + waiting();
            return steps;
        }
    }
    return steps;
}

void end_block(Block& ended) {
    for (Thread& thread : ended.threads) free_stacks.push_back(thread.stack);
}

void run_grid() {
    std::vector<unsigned> order(launch->grid);
    for (unsigned i = 0; i < launch->grid; ++i) order[i] = i;
    if (launch->shuffled) std::shuffle(order.begin(), order.end(), launch->random);
    std::vector<std::unique_ptr<Block>> alive;
    size_t next = 0;
    uint64_t steps = 0;
    while (launch->fault.empty()) {
        while (alive.size() < ALIVE_BLOCKS && next < order.size()) alive.push_back(make_block(order[next++]));
        if (alive.empty()) return;
        for (size_t i = 0; i < alive.size() && launch->fault.empty();) {
            block = alive[i].get();
            std::memcpy(launch->shared, block->shared.data(), launch->shared_nbytes);
            steps += take_turn();
            std::memcpy(block->shared.data(), launch->shared, launch->shared_nbytes);
            if (block->running || !launch->fault.empty()) {
                i += 1;
                continue;
            }
            end_block(*block);
            alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(i));
            steps = 0;
        }
        if (steps > MAX_STEPS) launch->fault = "the kernel does not end";
    }
    for (auto& each : alive) end_block(*each);
}

}  // namespace

namespace simt {

Index thread_index() { return {current}; }
Index block_index() { return {block->index}; }
Index block_size() { return {launch->block}; }
Index grid_size() { return {launch->grid}; }

uint64_t together(Together what, unsigned mask, uint64_t value, unsigned argument) {
    const unsigned first = current / LANES * LANES;
    Thread* const lanes = block->threads.data() + first;
    Thread& self = lanes[current - first];
    if (!(mask >> (current - first) & 1)) fail("a lane calls a *_sync function with the mask %#x, which it is not in", mask);
    self.state = State::IN_WARP;
    self.what = what;
    self.mask = mask;
    self.value = value;
    self.argument = argument;
    bool complete = true;
    for (unsigned lane = 0; lane < LANES; ++lane) {
        if (!(mask >> lane & 1)) continue;
        if (first + lane >= block->threads.size() || lanes[lane].state == State::DONE) {
            fail("lane %u is in the mask of a *_sync function, but has ended", lane);
        }
        if (lanes[lane].state == State::IN_BLOCK) {
            fail("lane %u is in the mask of a *_sync function, but waits in __syncthreads", lane);
        }
        if (lanes[lane].state != State::IN_WARP) {
            complete = false;
        } else if (lanes[lane].what != what || lanes[lane].mask != mask) {
            fail("lanes diverge: lane %u is in another *_sync function, or has another mask, than lane %u", lane,
                 current - first);
        }
    }
    if (complete) {
        exchange(lanes, mask, what);
        if (what == Together::SYNC) block->warp_synchronized[first / LANES] += 1;
        for (unsigned lane = 0; lane < LANES; ++lane) {
            if (mask >> lane & 1) lanes[lane].state = State::READY;
        }
    } else {
        leave_thread();
    }
    return block->threads[current].result;
}

void synchronize_block() {
    Thread& self = block->threads[current];
    const unsigned first = current / LANES * LANES;
    for (unsigned lane = first; lane < std::min<size_t>(first + LANES, block->threads.size()); ++lane) {
        if (block->threads[lane].state == State::IN_WARP) {
            fail("a lane is in __syncthreads while lane %u of its warp waits in a *_sync function", lane - first);
        }
    }
    self.state = State::IN_BLOCK;
    leave_thread();
}

void check_alignment(const void* address, unsigned alignment) {
    access(address, alignment, alignment, false, __builtin_return_address(0));
}

}  // namespace simt

extern "C" {

// Tell that a kernel may use memory, or may no longer.
void simt_allow(uint64_t address, uint64_t nbytes) { allocations[address] = nbytes; }
void simt_forbid(uint64_t address) {
    allocations.erase(address);
    recent_start = recent_stop = 0;
}
// Let kernels use any memory of the process.
void simt_allow_any(int allowed) { any_memory = allowed; }

// Run a kernel; return what is wrong with it, or an empty text.
const char* simt_launch(void* kernel, uint64_t grid, uint64_t block_size, const uint64_t* arguments, uint64_t count,
                        char* shared_start, char* shared_stop, int64_t seed) {
    static std::string fault;
    uint64_t padded[MAX_ARGUMENTS] = {};
    std::copy(arguments, arguments + count, padded);
    Launch now{};
    now.kernel = reinterpret_cast<Kernel>(kernel);
    now.arguments = padded;
    now.grid = static_cast<unsigned>(grid);
    now.block = static_cast<unsigned>(block_size);
    now.shuffled = seed >= 0;
    now.random.seed(static_cast<uint64_t>(seed));
    now.shared = shared_start;
    now.shared_nbytes = static_cast<size_t>(shared_stop - shared_start);
    launch = &now;
    std::fenv_t environment;
    std::fegetenv(&environment);
    std::fesetenv(FE_DFL_ENV);
    run_grid();
    std::fesetenv(&environment);
    launch = nullptr;
    block = nullptr;
    fault = now.fault;
    return fault.c_str();
}

// What -fsanitize=thread calls.
#define SIMT_ACCESS(nbytes)                                                                                          \
    void __tsan_read##nbytes(void* address) { access(address, nbytes, nbytes, false, __builtin_return_address(0)); }  \
    void __tsan_write##nbytes(void* address) { access(address, nbytes, nbytes, true, __builtin_return_address(0)); }  \
    void __tsan_unaligned_read##nbytes(void* address) {                                                              \
        access(address, nbytes, nbytes, false, __builtin_return_address(0));                                         \
    }                                                                                                                \
    void __tsan_unaligned_write##nbytes(void* address) {                                                             \
        access(address, nbytes, nbytes, true, __builtin_return_address(0));                                          \
    }
SIMT_ACCESS(1)
SIMT_ACCESS(2)
SIMT_ACCESS(4)
SIMT_ACCESS(8)
SIMT_ACCESS(16)
void __tsan_read_range(void* address, size_t nbytes) { access(address, nbytes, 1, false, __builtin_return_address(0)); }
void __tsan_write_range(void* address, size_t nbytes) { access(address, nbytes, 1, true, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
}
