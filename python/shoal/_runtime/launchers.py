"""Other launchers, known by what they say in the environment of a process that they start."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

# For each launcher: what people call it, and a variable that has the number of its processes.
LAUNCHERS: Tuple[Tuple[str, str], ...] = (
    ("torchrun", "WORLD_SIZE"),
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun of MPICH or Intel MPI", "PMI_SIZE"),
    # Not SLURM_NTASKS, which the script of a batch job has too though it runs once.
    ("srun", "SLURM_STEP_NUM_TASKS"),
)


def other_launcher(env: Mapping[str, str]) -> Optional[Tuple[str, int]]:
    """Return the launcher that has started this process as one of several, such as "torchrun
    (WORLD_SIZE=4)", and their number; None if there is none.
    """
    for name, variable in LAUNCHERS:
        value = env.get(variable, "")
        if value.isascii() and value.isdigit() and int(value) > 1:
            return f"{name} ({variable}={value})", int(value)
    return None
