// allreduce_mpi: the time of an in-place MPI_Allreduce, float32 sum, for each size given in bytes.
// usage: mpirun -np 2 allreduce_mpi BYTES…
//
// A barrier before and after each call; a call takes as long as on its slowest rank; rank 0 prints
// one JSON object a size.
#include <mpi.h>

#include "payload.h"

static int rank, ranks;

// timed_call refills x, times one call on the slowest rank, in microseconds, and checks the result.
static double timed_call(float *x, size_t n, int call, int *good) {
    fill(x, n, call, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_us();
    MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double us = now_us() - start;
    MPI_Barrier(MPI_COMM_WORLD); // checking takes no processor from who is still in the call
    *good &= holds_sum(x, n, call, ranks);
    return us;
}

static bool measure(size_t bytes) {
    size_t n = bytes / sizeof(float);
    float *x = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!x) {
        fprintf(stderr, "allreduce_mpi: no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    int call = 0, good = 1;
    double us[MOST], last = 0;
    while (call < warm_up_calls(bytes)) last = timed_call(x, n, call++, &good);
    MPI_Allreduce(MPI_IN_PLACE, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    int count = measured_calls(bytes, last);
    for (int i = 0; i < count; i++) us[i] = timed_call(x, n, call++, &good);
    MPI_Allreduce(MPI_IN_PLACE, us, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) print_line(ranks, bytes, us, count, good);
    free(x);
    return good;
}

int main(int argc, char **argv) {
    bool good = true;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    make_pool();
    for (int i = 1; i < argc; i++) good &= measure(strtoull(argv[i], NULL, 10));
    MPI_Finalize();
    return good ? 0 : 1;
}
