// The process's threads. POSIX threads rather than C++'s, because those throw where none can be started.

#include <pthread.h>

#include <cstdlib>
#include <new>

#include "codec.hpp"

namespace zipccl {
namespace {

struct Scratch {
    uint8_t* memory;
    size_t nbytes;
};

struct Job {
    void (*step)(void* context, size_t index);
    void* context;
    size_t steps;
    size_t next;      // step to be begun
    size_t finished;  // count of steps
};

struct Pool {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t has_work = PTHREAD_COND_INITIALIZER;
    pthread_cond_t is_done = PTHREAD_COND_INITIALIZER;
    int workers = 0;
    bool taken = false;
    Job job = {};
    Scratch scratch[MAX_THREADS] = {};
};

// Never freed: its workers wait on it until the process ends.
Pool* pool = nullptr;
pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;

// A forked child has none of its parent's threads, and locks that these held stay locked: it starts anew.
void forget_pool() {
    pool = nullptr;
    pool_mutex = PTHREAD_MUTEX_INITIALIZER;
}

Pool* the_pool() {
    pthread_mutex_lock(&pool_mutex);
    if (!pool) {
        static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
        if (registered == 0) pool = new (std::nothrow) Pool;
    }
    Pool* const result = pool;
    pthread_mutex_unlock(&pool_mutex);
    return result;
}

// Do one step, with the mutex held before and after.
void do_step(Pool& pool) {
    const Job job = pool.job;
    const size_t index = pool.job.next++;
    pthread_mutex_unlock(&pool.mutex);
    job.step(job.context, index);
    pthread_mutex_lock(&pool.mutex);
    if (++pool.job.finished == pool.job.steps) pthread_cond_signal(&pool.is_done);
}

void* work(void* argument) {
    Pool& pool = *static_cast<Pool*>(argument);
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        while (pool.job.next == pool.job.steps) pthread_cond_wait(&pool.has_work, &pool.mutex);
        do_step(pool);
    }
}

void start_workers(Pool& pool, int wanted) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (pool.workers < wanted && pthread_create(&thread, &attributes, work, &pool) == 0) ++pool.workers;
    pthread_attr_destroy(&attributes);
}

}  // namespace

Team::Team(int most) : threads(1), pool(nullptr) {
    if (most <= 1) return;
    Pool* const candidate = the_pool();
    if (!candidate) return;
    const int wanted = most < MAX_THREADS ? most : MAX_THREADS;
    pthread_mutex_lock(&candidate->mutex);
    if (!candidate->taken) {
        start_workers(*candidate, wanted - 1);
        threads = size_t(candidate->workers + 1 < wanted ? candidate->workers + 1 : wanted);
        candidate->taken = true;
        pool = candidate;
    }
    pthread_mutex_unlock(&candidate->mutex);
}

Team::~Team() {
    if (!pool) return;
    Pool& taken = *static_cast<Pool*>(pool);
    pthread_mutex_lock(&taken.mutex);
    taken.taken = false;
    pthread_mutex_unlock(&taken.mutex);
}

void Team::run(size_t steps, void (*step)(void* context, size_t index), void* context) {
    if (!pool) {
        for (size_t i = 0; i < steps; ++i) step(context, i);
        return;
    }
    Pool& taken = *static_cast<Pool*>(pool);
    pthread_mutex_lock(&taken.mutex);
    taken.job = {step, context, steps, 0, 0};
    pthread_cond_broadcast(&taken.has_work);
    while (taken.job.next < steps) do_step(taken);
    while (taken.job.finished < steps) pthread_cond_wait(&taken.is_done, &taken.mutex);
    pthread_mutex_unlock(&taken.mutex);
}

uint8_t* Team::scratch(size_t index, size_t nbytes) {
    Scratch& scratch = static_cast<Pool*>(pool)->scratch[index];
    if (scratch.nbytes < nbytes) {
        std::free(scratch.memory);
        scratch.memory = static_cast<uint8_t*>(std::malloc(nbytes));
        scratch.nbytes = scratch.memory ? nbytes : 0;
    }
    return scratch.memory;
}

}  // namespace zipccl
