// allreduce_kungfu: the time of an in-place KungFu all-reduce, float32 sum, for each size given in
// bytes.
// usage: kungfu-run -np 2 allreduce_kungfu BYTES…
//
// A barrier before and after each call; a call takes as long as on its slowest rank; rank 0 prints
// one JSON object a size.
#include <kungfu.h>

#include "payload.h"

// all_reduce combines x in place. Tensors of a name and a length meet, and steps of training use a
// name again and again: so does this.
template <typename T>
static void all_reduce(kungfu::Peer &job, T *x, size_t n, KungFu_Op op, const char *name) {
    // KungFu has said why
    if (job.AllReduce(x, x, (int)n, kungfu::type_encoder::value<T>(), op, name)) exit(1);
}

static void barrier(kungfu::Peer &job) {
    if (job.Barrier()) exit(1);
}

// timed_call refills x, times one call on this rank, in microseconds, and checks the result.
static double timed_call(kungfu::Peer &job, float *x, size_t n, int call, int32_t *good) {
    fill(x, n, call, job.Rank());
    barrier(job);
    double start = now_us();
    all_reduce(job, x, n, KungFu_SUM, "x");
    double us = now_us() - start;
    barrier(job); // checking takes no processor from who is still in the call
    *good &= holds_sum(x, n, call, job.Size());
    return us;
}

static bool measure(kungfu::Peer &job, size_t bytes) {
    size_t n = bytes / sizeof(float);
    float *x = (float *)aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!x) {
        fprintf(stderr, "allreduce_kungfu: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    int call = 0;
    int32_t good = 1;
    double us[MOST], last = 0;
    while (call < warm_up_calls(bytes)) last = timed_call(job, x, n, call++, &good);
    all_reduce(job, &last, 1, KungFu_MAX, "last");
    int count = measured_calls(bytes, last);
    for (int i = 0; i < count; i++) us[i] = timed_call(job, x, n, call++, &good);
    all_reduce(job, us, count, KungFu_MAX, "us");
    all_reduce(job, &good, 1, KungFu_MIN, "good");
    if (job.Rank() == 0) print_line(job.Size(), bytes, us, count, good);
    free(x);
    return good;
}

int main(int argc, char **argv) {
    kungfu::Peer job;
    bool good = true;
    make_pool();
    for (int i = 1; i < argc; i++) good &= measure(job, strtoull(argv[i], NULL, 10));
    barrier(job); // nobody leaves while another still waits for its part of the last result
    return good ? 0 : 1;
}
