"""The sum of sparse tensors, which DistributedDataParallel needs for embeddings with sparse
gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .wire import op_name, wire_to_move
from .work import Work


def all_reduce(group, work: Work, tensor: Tensor, op) -> None:
    """Sum a sparse COO tensor over the ranks of a ProcessGroup, in place: gather all entries and
    add them up here, when `work` is waited for.

    How many entries the others have is asked first, and waited for; the entries themselves are a
    part of `work`. Raises RuntimeError for another reduction than a sum or a mean.
    """
    if op_name(op) not in ("SUM", "AVG"):
        raise RuntimeError(
            "shoal: sparse tensors can only be summed or averaged: call to_dense() for other"
            " reductions"
        )
    own = tensor.detach().coalesce()
    counts = torch.empty(group.size(), dtype=torch.int64)
    group.allgather_into_tensor_coalesced([counts], [torch.tensor([own._nnz()])]).wait()
    total = int(counts.sum())
    indices = torch.empty((total, own.sparse_dim()), dtype=torch.int64)
    values = torch.empty((total, *own.values().shape[1:]), dtype=own.dtype)
    group.submit_call(work, "all_gather", wire_to_move(own.indices().t()), wire_to_move(indices))
    group.submit_call(work, "all_gather", wire_to_move(own.values()), wire_to_move(values))

    def finish() -> None:
        """Add up the gathered entries, and copy the sum, or the mean, into the tensor. Runs on the
        thread that settles the work.
        """
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
        # detach() would not do: the copy of a sparse tensor replaces its parts
        with torch.no_grad():
            tensor.copy_(total / group.size() if op_name(op) == "AVG" else total)

    work.add_finisher(finish)
