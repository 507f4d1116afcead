// payload.h: what the measuring programs of this folder have in common, and `shoal bench` and
// python/shoal/bench.py do in the same way: what buffers hold, how a result is checked, how often a
// size is measured, a line of the report.
//
// Buffers repeat a pool of random whole numbers in [-512, 511]; each rank starts at a place of its
// own, drawn anew for each call. Sums of a few of them are exact in float32 in every order of
// summation, so results are compared bit by bit. The length of the pool is a prime: a block that
// lands in the wrong place does not pass.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POOL = 262139, MOST = 500, FEWEST = 8, MAX_RANKS = 64 };
static float pool[2 * POOL]; // twice the same, so that POOL elements follow every start

static uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void make_pool(void) {
    for (int i = 0; i < POOL; i++) pool[i] = pool[i + POOL] = (float)((int)(mix(i) >> 54) - 512);
}

static const float *start(int call, int rank) {
    return pool + mix((uint64_t)call << 32 | (uint32_t)rank) % POOL;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void fill(float *x, size_t n, int call, int rank) {
    for (size_t at = 0; at < n; at += POOL)
        memcpy(x + at, start(call, rank), least(POOL, n - at) * sizeof *x);
}

// holds_sum reports whether every element of x is the sum over what the ranks were filled with.
static bool holds_sum(const float *x, size_t n, int call, int ranks) {
    static float want[POOL];
    for (size_t i = 0; i < least(n, POOL); i++) want[i] = 0;
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < least(n, POOL); i++) want[i] += start(call, r)[i];
    for (size_t at = 0; at < n; at += POOL)
        if (memcmp(x + at, want, least(POOL, n - at) * sizeof *x)) return false;
    return true;
}

static int clamp(double n, int low, int high) { return n < low ? low : n > high ? high : (int)n; }

// A size is measured as often as 512 MiB hold it and two seconds of calls allow, from FEWEST to
// MOST times.
static int warm_up_calls(size_t bytes) {
    return 3 + clamp((512 << 20) / (bytes + 1.0), FEWEST, MOST) / 10;
}
static int measured_calls(size_t bytes, double us) {
    return clamp(2e6 / us, FEWEST, clamp((512 << 20) / (bytes + 1.0), FEWEST, MOST));
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// print_line sorts the times of one size and prints its JSON object.
static void print_line(int ranks, size_t bytes, double *us, int n, bool verified) {
    qsort(us, n, sizeof *us, by_value);
    double median = (us[(n - 1) / 2] + us[n / 2]) / 2, p99 = us[(99 * n + 99) / 100 - 1];
    printf("{\"n\":%d,\"bytes\":%zu,\"dtype\":\"f32\",\"iterations\":%d,"
           "\"median_us\":%.3f,\"p99_us\":%.3f,"
           "\"verified\":%s}\n", ranks, bytes, n, median, p99, verified ? "true" : "false");
    fflush(stdout);
}
