// matmul/c_threads: C[m][n] = sum over k of A[m][k] B[k][n], three loops, rows of C split over POSIX threads.
//
// A   M x K    B   K x N    C   M x N, overwritten    row major, T, any M, N, K >= 1
//
// The textbook's loops, one thread for each core that the process may use, created and joined in each call: what
// OpenMP does, by hand and without its pool of waiting threads. Each thread moves to a core of its own. Those cores
// are noted when the library is loaded: the caller may be bound to one of them by the time of the call, and its
// threads would inherit that.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

enum { MOST_THREADS = 1024 };

static int cores[MOST_THREADS];  // the number of each core, -1 where a thread stays where the system puts it
static int core_count = 1;

__attribute__((constructor)) static void note_cores(void) {
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        core_count = 0;
        for (int core = 0; core < CPU_SETSIZE && core_count < MOST_THREADS; ++core)
            if (CPU_ISSET(core, &allowed))
                cores[core_count++] = core;
        return;
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    core_count = online < 1 ? 1 : online > MOST_THREADS ? MOST_THREADS : (int)online;
    for (int thread = 0; thread < core_count; ++thread)
        cores[thread] = -1;
}

struct part {
    const T *A, *B;
    T *C;
    long long first, end, N, K;  // rows first .. end - 1 of C
    int core;
};

static void multiply(const T *restrict A, const T *restrict B, T *restrict C, long long first, long long end,
                     long long N, long long K) {
    for (long long m = first; m < end; ++m)
        for (long long n = 0; n < N; ++n) {
            T sum = 0;
            for (long long k = 0; k < K; ++k)
                sum += A[m * K + k] * B[k * N + n];
            C[m * N + n] = sum;
        }
}

static void *run(void *argument) {
    const struct part *part = argument;
#ifdef __linux__
    if (part->core >= 0) {
        cpu_set_t own;
        CPU_ZERO(&own);
        CPU_SET(part->core, &own);
        // A core that has been taken from the process since: the thread then runs where it is, slower but right.
        (void)sched_setaffinity(0, sizeof own, &own);
    }
#endif
    multiply(part->A, part->B, part->C, part->first, part->end, part->N, part->K);
    return 0;
}

void matmul_c_threads(const T *restrict A, const T *restrict B, T *restrict C, long long M, long long N, long long K) {
    struct part parts[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    bool started[MOST_THREADS];
    const int count = M < core_count ? (int)M : core_count;

    for (int i = 0; i < count; ++i) {
        parts[i] = (struct part){A, B, C, M * i / count, M * (i + 1) / count, N, K, cores[i]};
        started[i] = pthread_create(&threads[i], 0, run, &parts[i]) == 0;
    }
    for (int i = 0; i < count; ++i)
        if (!started[i])  // no thread to be had: the caller does its rows
            multiply(A, B, C, parts[i].first, parts[i].end, N, K);
    for (int i = 0; i < count; ++i)
        if (started[i])
            pthread_join(threads[i], 0);
}
