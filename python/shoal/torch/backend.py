"""The torch.distributed backend "shoal": the collectives of c10d, carried out by the agent.

Importing this module registers the backend; `torch.distributed.init_process_group("shoal")` then
uses it.
"""

from __future__ import annotations

import inspect
import os
from datetime import timedelta
from typing import List, Optional

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

import shoal

from . import bitwise, c10d, cuda, monitored, sparse
from .executor import Executor, on_executor
from .wire import Wire, concatenate, wire_to_move, wire_to_reduce
from .work import Transfer, Work


class ProcessGroup(dist.ProcessGroup):
    """A group of the job's ranks, as torch.distributed calls it; of all ranks where `ranks` is
    None.

    In a job that trains in steps, the group of all ranks changes with the members; other groups do
    not survive a loss.

    Tensors live on the CPU or on a CUDA device, from which they are copied and back, of any dense
    layout and any type. Each method returns a `Work`; the outputs hold the result once that is
    done, the same bytes on every rank. Where the ranks call different things (operation, shape,
    type), the works of all of them raise an error that names both calls. Any thread may call the
    methods, where the calls come in the same order on all ranks; only `monitored_barrier`, and
    `allreduce` of sparse tensors, wait for the others.
    """

    def __init__(self, job: "shoal.Job", ranks: Optional[List[int]], timeout: timedelta):
        """Make the group, and another one for callbacks, together with the other ranks."""
        self._job = job
        self._whole = ranks is None
        # A group of its own even for all ranks, so that torch's calls do not mix with the script's
        # own calls to shoal; and one for the calls that callbacks of futures make, whose order is
        # certain only among themselves.
        self._group, self._callbacks_group = self._new_group(ranks), self._new_group(ranks)
        self._timeout = timeout
        self._executor = Executor()
        self._monitored = 0  # number of monitored barriers so far, which one thread makes
        self._name = self._description = ""
        super().__init__(self._group.rank, self._group.size)
        self.attached_backend = c10d.attach_backend(self)

    def _new_group(self, ranks: Optional[List[int]]) -> "shoal.Group":
        """A new group of these ranks of the job; None = all of them. The ranks make it together,
        and wait until the agent has it.
        """
        return self._job.group(list(range(self._job.size)) if ranks is None else ranks)

    def rank(self) -> int:
        """The rank of this process in the group."""
        return self._current_group().rank

    def size(self) -> int:
        """The number of processes in the group."""
        return self._current_group().size

    def _current_group(self) -> "shoal.Group":
        """The group for a call of this thread: callbacks have one of their own."""
        if self._whole and self._job.elastic:
            return self._job  # only the whole job can go on without a member
        return self._callbacks_group if on_executor() else self._group

    def getBackendName(self) -> str:  # noqa: N802, the name that torch's C++ side looks for
        """The name of this backend in torch's logs, "shoal"."""
        return "shoal"

    # torch asks the Backend of a group for the following, and a group often has none (c10d.py).

    supports_splitting = False  # groups are made anew; asked for where there is a device_id

    @property
    def group_name(self) -> str:
        """The name by which torch finds the group again, as for an axis of a DeviceMesh."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        """Keep the name; torch calls it once the group is made."""
        self._name = name
        super()._set_group_name(name)

    @property
    def group_desc(self) -> str:
        """What the group is for, in torch's words."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        """Keep what the group is for; torch calls it once the group is made."""
        self._description = description
        super()._set_group_desc(description)

    @property
    def _device_types(self) -> List[torch.device]:
        """The devices whose tensors the group takes."""
        return [torch.device(name) for name in cuda.device_types()]

    def _get_backend(self, device: torch.device) -> object:
        """What does the work for tensors on a device; raises RuntimeError for another device."""
        return super()._get_backend(device) if self.attached_backend else self

    # Reductions

    def allreduce(self, tensors: List[Tensor], opts=AllreduceOptions()) -> Work:
        """Reduce each tensor over all ranks, in place; sparse tensors can be summed, after a wait
        for the numbers of their entries.
        """
        work = self._new_work(tensors, opts)
        if tensors[0].is_sparse:
            sparse.all_reduce(self, work, tensors[0], opts.reduceOp)
            return work
        with self._job.grouped():
            for tensor in tensors:
                if bitwise.is_bitwise(opts.reduceOp):
                    self._submit_bitwise(work, tensor, tensor, opts)
                else:
                    wire, op = wire_to_reduce(tensor, opts.reduceOp)
                    self.submit_call(work, "all_reduce", wire, wire, op=op)
        return work

    def allreduce_coalesced(self, tensors: List[Tensor], opts=AllreduceCoalescedOptions()) -> Work:
        """allreduce, which takes any number of tensors."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: List[Tensor], opts=ReduceOptions()) -> Work:
        """Reduce each tensor into the root's; the others stay as they are."""
        work = self._new_work(tensors, opts)
        at_root = self.rank() == opts.rootRank
        for tensor in tensors:
            if bitwise.is_bitwise(opts.reduceOp):
                self._submit_bitwise(work, tensor, tensor if at_root else None, opts)
            else:
                wire, op = wire_to_reduce(tensor, opts.reduceOp)
                self.submit_call(
                    work, "reduce", wire, wire if at_root else None, op=op, peer=opts.rootRank
                )
        return work

    def reduce_scatter(
        self, outputs: List[Tensor], inputs: List[List[Tensor]], opts=ReduceScatterOptions()
    ) -> Work:
        """Reduce every rank's list of blocks; rank r gets the r-th. Blocks may differ in size."""
        work = self._new_work(outputs, opts)
        for output, blocks in zip(outputs, inputs):
            wires = [wire_to_reduce(block, opts.reduceOp)[0] for block in blocks]
            wire, op = wire_to_reduce(output, opts.reduceOp)
            self.submit_call(work, "reduce_scatter", concatenate(wires, fill=True), wire, op=op)
        return work

    def _reduce_scatter_base(
        self, output: Tensor, input: Tensor, opts=ReduceScatterOptions()
    ) -> Work:
        """Reduce the input over all ranks; rank r gets its r-th equal block."""
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: List[Tensor], inputs: List[Tensor], opts=ReduceScatterOptions()
    ) -> Work:
        """Reduce each input over all ranks; rank r gets its r-th equal block."""
        work = self._new_work(outputs, opts)
        with self._job.grouped():
            for output, tensor in zip(outputs, inputs):
                wire, op = wire_to_reduce(output, opts.reduceOp)
                self.submit_call(
                    work, "reduce_scatter", wire_to_reduce(tensor, opts.reduceOp)[0], wire, op=op
                )
        return work

    # Movements

    def broadcast(self, tensors: List[Tensor], opts=BroadcastOptions()) -> Work:
        """Copy the root's tensors to every rank."""
        work = self._new_work(tensors, opts)
        at_root = self.rank() == opts.rootRank
        for tensor in tensors:
            wire = wire_to_move(tensor)
            self.submit_call(
                work,
                "broadcast",
                wire if at_root else None,
                None if at_root else wire,
                peer=opts.rootRank,
            )
        return work

    def allgather(
        self, outputs: List[List[Tensor]], inputs: List[Tensor], opts=AllgatherOptions()
    ) -> Work:
        """Copy every rank's tensor to the list of every rank. The tensors of the ranks may differ
        in size.
        """
        work = self._new_work(outputs[0] if outputs else [], opts)
        with self._job.grouped():
            for places, tensor in zip(outputs, inputs):
                self.submit_call(
                    work,
                    "all_gather",
                    wire_to_move(tensor),
                    concatenate([wire_to_move(p) for p in places], fill=False),
                )
        return work

    def allgather_coalesced(
        self, outputs: List[List[Tensor]], inputs: List[Tensor], opts=AllgatherOptions()
    ) -> Work:
        """allgather of each input; outputs[r][i] becomes input i of rank r."""
        return self.allgather([list(places) for places in zip(*outputs)], inputs, opts)

    def _allgather_base(self, output: Tensor, input: Tensor, opts=AllgatherOptions()) -> Work:
        """Copy the input of every rank, one after the other, into the output."""
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: List[Tensor], inputs: List[Tensor], opts=AllgatherOptions()
    ) -> Work:
        """Copy each input of every rank, one after the other, into the output."""
        work = self._new_work(outputs, opts)
        with self._job.grouped():
            for output, tensor in zip(outputs, inputs):
                self.submit_call(work, "all_gather", wire_to_move(tensor), wire_to_move(output))
        return work

    def gather(
        self, outputs: List[List[Tensor]], inputs: List[Tensor], opts=GatherOptions()
    ) -> Work:
        """Copy every rank's tensor to the list of the root."""
        places = (
            concatenate([wire_to_move(p) for p in outputs[0]], fill=False)
            if self.rank() == opts.rootRank
            else None
        )
        work = self._new_work(outputs[0] if outputs else [], opts)
        self.submit_call(work, "gather", wire_to_move(inputs[0]), places, peer=opts.rootRank)
        return work

    def scatter(
        self, outputs: List[Tensor], inputs: List[List[Tensor]], opts=ScatterOptions()
    ) -> Work:
        """Copy the r-th tensor of the root's list to rank r."""
        blocks = (
            concatenate([wire_to_move(b) for b in inputs[0]], fill=True)
            if self.rank() == opts.rootRank
            else None
        )
        work = self._new_work(outputs, opts)
        self.submit_call(work, "scatter", blocks, wire_to_move(outputs[0]), peer=opts.rootRank)
        return work

    def alltoall(self, outputs: List[Tensor], inputs: List[Tensor], opts=AllToAllOptions()) -> Work:
        """Copy tensor r to rank r; outputs[r] becomes what rank r has for this one. Sizes may
        differ.
        """
        work = self._new_work(outputs, opts)
        blocks = [wire_to_move(block) for block in inputs]
        places = concatenate([wire_to_move(p) for p in outputs], fill=False)
        self.submit_call(
            work,
            "all_to_all",
            concatenate(blocks, fill=True),
            places,
            counts=[b.data.numel() for b in blocks],
        )
        return work

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: List[int],
        input_splits: List[int],
        opts=AllToAllOptions(),
    ) -> Work:
        """Cut the input along its first dimension, piece r for rank r; equal pieces where
        `input_splits` is empty; then RuntimeError is raised where the rows do not split evenly.
        """
        if not input_splits and input.size(0) % self.size():
            raise RuntimeError(
                f"shoal: all_to_all_single of {input.size(0)} rows, which do not split evenly over"
                f" {self.size()} ranks: give input_split_sizes and output_split_sizes, the rows to"
                " and from each rank"
            )
        work = self._new_work([output], opts)
        wire = wire_to_move(input)
        row = wire.data.numel() // max(1, input.size(0))
        rows = input_splits or [input.size(0) // self.size()] * self.size()
        counts = [n * row for n in rows] if input_splits or output_splits else None
        self.submit_call(work, "all_to_all", wire, wire_to_move(output), counts=counts)
        return work

    def send(self, tensors: List[Tensor], dst: int, tag: int) -> Work:
        """Send a tensor to rank `dst` of the group."""
        work = Transfer(self._executor, tensors, self._timeout)
        self.submit_call(work, "send", wire_to_move(tensors[0]), None, peer=dst, tag=tag)
        return work

    def recv(self, tensors: List[Tensor], src: int, tag: int) -> Work:
        """Receive into a tensor what rank `src` of the group sends."""
        work = Transfer(self._executor, tensors, self._timeout)
        self.submit_call(work, "recv", None, wire_to_move(tensors[0]), peer=src, tag=tag)
        return work

    def recv_anysource(self, tensors: List[Tensor], tag: int) -> Work:
        """Receive into a tensor what any rank sends; the work's `source_rank()` then says which."""
        return self.recv(tensors, -1, tag)

    def barrier(self, opts=BarrierOptions()) -> Work:
        """Begin to wait for every rank; the work's `wait` does it."""
        work = self._new_work([], opts)
        self.submit_call(work, "barrier", None, None)
        return work

    def monitored_barrier(self, timeout=None, wait_all_ranks: bool = False) -> None:
        """Block until every rank is here; at the timeout, rank 0 raises an error that names the
        first that did not come, or all.
        """
        self._monitored += 1
        monitored.monitored_barrier(
            self, self._monitored, self._timeout if timeout is None else timeout, wait_all_ranks
        )

    # torch 2 calls some of these by other names.

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # What they are made of

    def _new_work(self, result: List[Tensor], opts) -> Work:
        """A work without calls yet, whose result these tensors will hold."""
        return Work(
            self._executor, result, opts.timeout if opts.timeout > timedelta(0) else self._timeout
        )

    def submit_call(
        self, work: Work, kind: str, inp: Optional[Wire], out: Optional[Wire], **arguments
    ) -> None:
        """Submit one call to the agent as a part of `work`, which copies the result home when it is
        waited for. `arguments` are those of Job.submit. Called before torch has the work.
        """
        if inp and out and inp.data.dtype != out.data.dtype:
            raise RuntimeError(
                f"shoal: {kind} from {inp.data.dtype} to {out.data.dtype}: give the output the type"
                " of the input"
            )
        work.add_call(
            kind,
            self._job.submit(
                kind,
                inp and inp.data,
                out and out.data,
                group=self._current_group().id,
                **arguments,
            ),
        )
        if out is not None and out.back is not None:
            work.add_finisher(out.back)

    def _submit_bitwise(self, work: Work, tensor: Tensor, result: Optional[Tensor], opts) -> None:
        """Submit a bitwise reduction as a part of `work`: the result goes into `result`, which is
        None on ranks that get none.
        """
        place, finish = bitwise.prepare_bitwise(tensor, result, opts.reduceOp, self.size())
        self.submit_call(work, "all_gather", wire_to_move(tensor), wire_to_move(place))
        work.add_finisher(finish)


def _create_process_group(opts, _pg_options) -> ProcessGroup:
    """The process group that torch asks for, of this job's ranks, which all make it together. torch
    calls it, on the thread that makes a group. Raises RuntimeError where torch counts the ranks
    otherwise.
    """
    # The extended registration (torch 1.13 and later) says which ranks of the job form the group,
    # so nothing has to be exchanged through the store. The default group comes with an empty list
    # and must be the whole job.
    job = shoal.join()
    ranks = list(opts.global_ranks_in_group)
    if not ranks and (opts.group_rank, opts.group_size) != (job.rank, job.size):
        raise RuntimeError(
            f"shoal: torch calls this process rank {opts.group_rank} of {opts.group_size}, but it"
            f" is rank {job.rank} of {job.size} in its job: start the script with `shoal run -n"
            f" {opts.group_size} -- …`, and leave the rank and the world size to it"
        )
    return ProcessGroup(job, ranks or None, opts.timeout)


def _set_solo_environment() -> None:
    """Without a launcher, set the environment variables of torch's env:// for a job of one. Called
    when this module is imported.
    """
    if not {"SHOAL_SOCKET", "RANK", "WORLD_SIZE"} & os.environ.keys():
        os.environ.update(RANK="0", WORLD_SIZE="1")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")


def _register_with_torch() -> None:
    """Register the backend "shoal" with torch.distributed. Called when this module is imported."""
    # torch 2 asks for the kinds of device; torch 1.13 does not know the argument.
    takes_devices = "devices" in inspect.signature(dist.Backend.register_backend).parameters
    dist.Backend.register_backend(
        "shoal",
        _create_process_group,
        extended_api=True,
        **({"devices": cuda.device_types()} if takes_devices else {}),
    )


_set_solo_environment()
_register_with_torch()
