// Sharing a body's tiles among threads. Include it inside an anonymous namespace, after layout.hpp.

// Values' bytes for which it takes as long to wake a thread as to code them; the fuzz targets share smaller ones.
#if !defined(ZIPCCL_MIN_SHARE_NBYTES)
#define ZIPCCL_MIN_SHARE_NBYTES (1 << 20)
#endif
constexpr size_t MIN_SHARE_NBYTES = ZIPCCL_MIN_SHARE_NBYTES;

inline int useful_threads(int threads, size_t nbytes) { return int(smaller(threads, nbytes / MIN_SHARE_NBYTES)); }

// Call step(index) for each index less than shares, on all of the team's threads.
template <class Step>
inline void share_out(Team& team, size_t shares, Step step) {
    if (shares == 1) return step(size_t(0));
    team.run(shares, [](void* context, size_t index) { (*static_cast<Step*>(context))(index); }, &step);
}

// The tiles of the index-th of some shares: first to last - 1.
struct Share {
    size_t first;
    size_t last;

    Share(size_t tiles, size_t index, size_t shares) : first(tiles * index / shares), last(tiles * (index + 1) / shares) {}
};
