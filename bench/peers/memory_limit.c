// memory_limit: how fast the memory of this machine lets an in-place all-reduce of N float32
// buffers be.
// usage: memory_limit [-foreign] N BYTES…
//
// One process a core (pinned), N at most, all mapping the N buffers. Each owns a part of the
// elements, reads them once from every buffer and writes the sum once to every buffer: the least
// traffic that such an all-reduce can have. No kernel, no socket, no copy in between; barriers
// spin. With -foreign the buffers begin and end in private memory of the processes: each copies its
// own in and out, which such memory needs. One JSON object a size.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "payload.h"

typedef struct {
    atomic_int arrived, round, bad;
    double us[MAX_RANKS][MOST];
    int count;
} Board;

typedef struct {
    Board *board;
    float *x[MAX_RANKS];   // what is summed
    float *own[MAX_RANKS]; // of my ranks, what is filled and checked: x, or private memory
    size_t n;              // elements of a buffer
    int ranks, workers, me;
    bool foreign;
    size_t from, to; // the elements that are mine
} Worker;

static void barrier(Worker *w) {
    int round = atomic_load(&w->board->round);
    if (atomic_fetch_add(&w->board->arrived, 1) == w->workers - 1) {
        atomic_store(&w->board->arrived, 0);
        atomic_store(&w->board->round, round + 1);
        return;
    }
    for (int spins = 0; atomic_load(&w->board->round) == round; spins++)
        if (spins > 10000) sched_yield();
}

static void reduce2(float *restrict a, float *restrict b, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] = a[i] + b[i];
}

static void reduce4(float *restrict a, float *restrict b, float *restrict c, float *restrict d,
                    size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] = c[i] = d[i] = a[i] + b[i] + c[i] + d[i];
}

static void reduce(const Worker *w) {
    enum { BLOCK = 1024 };
    float *const *x = w->x, sum[BLOCK];
    for (size_t at = w->from; at < w->to; at += BLOCK) {
        size_t k = least(BLOCK, w->to - at);
        if (w->ranks == 2) {
            reduce2(x[0] + at, x[1] + at, k);
        } else if (w->ranks == 4) {
            reduce4(x[0] + at, x[1] + at, x[2] + at, x[3] + at, k);
        } else {
            memcpy(sum, x[0] + at, k * sizeof *sum);
            for (int r = 1; r < w->ranks; r++)
                for (size_t i = 0; i < k; i++) sum[i] += x[r][at + i];
            for (int r = 0; r < w->ranks; r++) memcpy(x[r] + at, sum, k * sizeof *sum);
        }
    }
}

// copy copies the buffers of my ranks where they are foreign, and waits for the others before a
// sum.
static void copy(Worker *w, float *const *to, float *const *from) {
    if (!w->foreign) return;
    for (int r = w->me; r < w->ranks; r += w->workers) memcpy(to[r], from[r], w->n * sizeof(float));
    if (to == w->x) barrier(w);
}

static double timed_call(Worker *w, int call) {
    for (int r = w->me; r < w->ranks; r += w->workers) fill(w->own[r], w->n, call, r);
    barrier(w);
    double start = now_us();
    copy(w, w->x, w->own);
    reduce(w);
    barrier(w);
    copy(w, w->own, w->x);
    double us = now_us() - start;
    barrier(w);
    for (int r = w->me; r < w->ranks; r += w->workers)
        if (!holds_sum(w->own[r], w->n, call, w->ranks)) atomic_store(&w->board->bad, 1);
    barrier(w);
    return us;
}

static void work(Worker *w) {
    for (int r = w->me; w->foreign && r < w->ranks; r += w->workers)
        w->own[r] = malloc(w->n * sizeof(float));
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(w->me, &core);
    sched_setaffinity(0, sizeof core, &core); // refused where other cores are ours: then unpinned
    Board *b = w->board;
    size_t bytes = w->n * sizeof(float), lines = (w->n + 15) / 16; // parts end between cache lines
    w->from = least(w->n, lines * w->me / w->workers * 16);
    w->to = least(w->n, lines * (w->me + 1) / w->workers * 16);
    int call = 0;
    double last = 0;
    while (call < warm_up_calls(bytes)) last = timed_call(w, call++);
    if (w->me == 0) b->count = measured_calls(bytes, last);
    barrier(w);
    for (int i = 0; i < b->count; i++) b->us[w->me][i] = timed_call(w, call++);
}

static void *shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) {
        perror("memory_limit: mmap");
        exit(1);
    }
    return p;
}

static bool measure(int ranks, size_t bytes, bool foreign) {
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    Worker w = {.board = shared(sizeof(Board)), .n = bytes / sizeof(float), .ranks = ranks,
                .workers = ranks < cores ? ranks : cores, .foreign = foreign};
    for (int r = 0; r < ranks; r++) w.own[r] = w.x[r] = shared(bytes);
    for (w.me = 0; w.me < w.workers; w.me++) {
        if (fork() == 0) {
            work(&w);
            _exit(0);
        }
    }
    bool good = true;
    for (int i = 0, status; i < w.workers; i++) good &= wait(&status) > 0 && status == 0;
    Board *b = w.board;
    good &= !atomic_load(&b->bad);
    for (int i = 1; i < w.workers; i++)
        for (int j = 0; j < b->count; j++)
            if (b->us[i][j] > b->us[0][j]) b->us[0][j] = b->us[i][j];
    print_line(ranks, bytes, b->us[0], b->count, good);
    for (int r = 0; r < ranks; r++) munmap(w.x[r], bytes);
    munmap(b, sizeof *b);
    return good;
}

int main(int argc, char **argv) {
    bool foreign = argc > 1 && !strcmp(argv[1], "-foreign");
    argc -= foreign, argv += foreign;
    int ranks = argc > 2 ? atoi(argv[1]) : 0;
    if (ranks < 1 || ranks > MAX_RANKS) {
        fprintf(stderr, "usage: memory_limit [-foreign] N BYTES…   (N from 1 to %d)\n", MAX_RANKS);
        return 2;
    }
    make_pool();
    bool good = true;
    for (int i = 2; i < argc; i++) good &= measure(ranks, strtoull(argv[i], NULL, 10), foreign);
    return good ? 0 : 1;
}
