"""Several processes that another launcher has started do not train alone, each as rank 0."""

import os
import subprocess
import sys

import pytest

VARIABLES = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]


def run_join(**variables):
    """Run a process that joins, with these variables in its environment and no others of launchers;
    return its exit code, and what it prints.
    """
    env = {name: x for name, x in os.environ.items() if name not in (*VARIABLES, "SHOAL_SOCKET")}
    command = [sys.executable, "-c", "import shoal; print(shoal.join())"]
    ran = subprocess.run(
        command,
        env={**env, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("variable", VARIABLES)
def test_join_refuses_one_of_several(variable):
    """Without shoal's launcher a process that another one started among four cannot join; the error
    names the variable and the command.
    """
    code, output = run_join(**{variable: "4"})
    assert code == 1
    assert f"{variable}=4" in output and "shoal run -n 4" in output


@pytest.mark.parametrize("value", ["1", "", "many"])
def test_join_takes_one_alone(value):
    """A process that another launcher started alone is a job of one."""
    code, output = run_join(**{variable: value for variable in VARIABLES})
    assert code == 0, output
    assert "rank 0 of 1" in output
