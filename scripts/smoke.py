"""What a worker needs of shoal, with the standard library alone: join, agree, all-reduce, leave."""

import array

import shoal

job = shoal.join()
x = array.array("f", [job.rank, 1.0, -2.5])
job.allreduce(x)
n = job.size
assert x.tolist() == [n * (n - 1) / 2, n, -2.5 * n], x
job.barrier()
