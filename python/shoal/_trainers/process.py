"""Each worker is alone to a framework: the variables that launchers set are hidden while it looks
for other processes, and its own number for this process is the rank in the job.

The functions change the environment and the frameworks of the whole process. So the thread that
imports an adapter calls them, and later that of the training loop, never two threads at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Callable, Dict, Iterator, Optional

import shoal

# What torchrun, mpirun and srun set, and shoal run sets too.
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
_PREFIXES = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "SLURM_")
# What has Accelerate cut the model over its processes: options of an Accelerator, and by which
# variables, ACCELERATE_USE_..., `accelerate launch` asks for it.
_CUTTING_OPTIONS = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "megatron_lm_plugin",
    "parallelism_config",
)
_CUTTING_VARIABLES = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG")
# The decorators of Accelerate for functions that one process runs, each with whether that is this
# one, by its PartialState and the number that some of them are given.
_ON_ONE_PROCESS: Dict[str, Callable[[Any, Optional[int]], bool]] = {
    "on_main_process": lambda state, _: bool(state.is_main_process),
    "on_local_main_process": lambda state, _: bool(state.is_local_main_process),
    "on_last_process": lambda state, _: bool(state.is_last_process),
    "on_process": lambda state, number: bool(state.process_index == number),
    "on_local_process": lambda state, number: bool(state.local_process_index == number),
}
# The number by which Accelerate knows this process for a while; None = its rank in the job.
_number: Optional[int] = None
# What a loop with an Accelerator can do that makes a second average in a step.
ONE_AVERAGE = (
    "Call accelerator.backward() once for each batch, with the sum of its losses. Several models"
    " with one loss: give prepare() one module that holds them all. Models with losses of their"
    " own, as in a GAN: a loop of shoal.torch.loader(…, averages=2) without an Accelerator"
)


def is_launched() -> bool:
    """Whether `shoal run` started this process, or another launcher of shoal."""
    return "SHOAL_SOCKET" in os.environ


@contextlib.contextmanager
def hide_launchers() -> Iterator[None]:
    """Hide the variables that tell of other processes, in the block; they are set again after
    it.
    """
    hidden = {
        name: value
        for name, value in os.environ.items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def select_device() -> None:
    """Of several CUDA devices that this process sees, leave it one, by LOCAL_RANK: frameworks take
    the first, or all of them. Does nothing once CUDA is in use, or without LOCAL_RANK.
    """
    import torch

    local = os.environ.get("LOCAL_RANK", "")
    if not local.isdigit() or torch.cuda.is_initialized() or torch.cuda.device_count() < 2:
        return
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = seen.split(",") if seen else [str(i) for i in range(torch.cuda.device_count())]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[int(local) % len(names)]


def hide_from_accelerate() -> None:
    """Have Accelerate, and the Trainer of transformers which asks it, take this process for the
    only one. Its number is the rank in the job, so that rank 0 writes and prints, and runs what is
    for one process. Replaces PartialState.__init__ and the decorators for that, once, and leaves
    the process one CUDA device, as `select_device` does; without a launcher of shoal it does
    nothing. Raises ValueError where `accelerate launch` has asked for a model that is cut.
    """
    from accelerate.state import PartialState

    init = PartialState.__init__
    if not is_launched() or hasattr(init, "replaced_by_shoal"):
        return
    for name in (f"ACCELERATE_USE_{x}" for x in _CUTTING_VARIABLES):
        if os.environ.get(name, "").lower() == "true":
            raise ValueError(
                f"{name}=true, as `accelerate launch` sets it, needs a fixed number of processes:"
                " leave it out, and have shoal run start python3 with the script itself"
            )

    @functools.wraps(init)
    def init_alone(self: Any, cpu: bool = False, **options: Any) -> None:
        """As PartialState's, without a look at other processes; then join the job, if that has not
        happened, for the number.
        """
        options.pop("backend", None)  # of a process group, which a process alone does not make
        with hide_launchers():
            init(self, cpu, **options)
        set_accelerate_rank()

    init_alone.replaced_by_shoal = True  # type: ignore[attr-defined]
    PartialState.__init__ = init_alone
    for name, is_here in _ON_ONE_PROCESS.items():
        setattr(PartialState, name, _on_one_process(getattr(PartialState, name), is_here))
    select_device()


def _on_one_process(own: Callable[..., Any], is_here: Callable[..., bool]) -> Callable[..., Any]:
    """A decorator of PartialState as `own`, but for a process that is alone to it, where that runs
    all functions: one that is for another process does nothing here. Which process this is counts
    when the function is called, since the rank may have changed by then.
    """

    @functools.wraps(own)
    def decorate(self: Any, function: Any = None, *number: Any, **named: Any) -> Any:
        """As PartialState's; without a function, a decorator."""
        if function is None:
            return own(self, function, *number, **named)
        where = next(iter((*number, *named.values())), None)

        @functools.wraps(function)
        def run_there(*arguments: Any, **options: Any) -> Any:
            """Run the function if this is the process that it is for; else return None."""
            set_accelerate_rank()
            return function(*arguments, **options) if is_here(self, where) else None

        return run_there

    return decorate


def check_options(options: Dict[str, Any]) -> None:
    """Raise ValueError where options of an Accelerator ask for a model that is cut, or for updates
    that have batches of two epochs.
    """
    if not getattr(options.get("gradient_accumulation_plugin"), "sync_with_dataloader", True):
        raise ValueError(
            "GradientAccumulationPlugin(sync_with_dataloader=False) has updates with batches of two"
            " epochs, and a step of a job has samples of one: leave it out"
        )
    for name in _CUTTING_OPTIONS:
        if options.get(name) is not None:
            raise ValueError(
                f"Accelerator({name}=...) needs a fixed number of processes: leave it out, and for"
                " an optimizer that does not fit use shoal.torch.zero in a loop of your own"
            )


def check_optimizer(optimizer: Any) -> None:
    """Raise ValueError for an optimizer that makes its steps within the backward pass: Lomo or
    AdaLomo, of lomo_optim.
    """
    kinds = type(optimizer).__mro__
    if any(kind.__module__.partition(".")[0] == "lomo_optim" for kind in kinds):
        raise ValueError(
            f"{type(optimizer).__name__} makes its steps within the backward pass, before the"
            " gradients of the workers are averaged: use another optimizer, such as"
            " torch.optim.Adafactor"
        )


def check_first(job: "shoal.Job", name: str, call: str) -> None:
    """Raise RuntimeError if the job has been entered by a Trainer before, this one or another,
    which has registered a part of the state by this name. `call` is how a script trains with it.
    """
    if job.unused(name) != name:
        raise RuntimeError(
            f"{call} was called a second time, and a job of shoal trains once: give the one"
            " training all of its epochs, or start another job, such as one for each part of the"
            " data"
        )


def set_accelerate_rank() -> None:
    """Tell Accelerate the number of this process: the rank that it has in the job now, or in a
    block of `as_rank_zero` that of the block.
    """
    from accelerate.state import AcceleratorState, PartialState

    rank = shoal.join().rank if _number is None else _number
    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        if state:
            state.update(process_index=rank, local_process_index=rank)


def ddp_options(accelerator: Any, **defaults: Any) -> Dict[str, Any]:
    """The options for DDP: those that the user has given to an Accelerator, and else `defaults`."""
    handler = accelerator.ddp_handler
    return {**defaults, **({} if handler is None else handler.to_kwargs())}


@contextlib.contextmanager
def as_rank_zero() -> Iterator[None]:
    """Have Accelerate take this worker for rank 0 in the block: rank 0 alone writes, and the names
    of files that it writes and reads have the number.
    """
    global _number
    _number = 0
    set_accelerate_rank()
    try:
        yield
    finally:
        _number = None
        set_accelerate_rank()
