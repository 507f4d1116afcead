"""Scripts that name nothing for workers that join: these have the same state as the others, or it is said that they have not."""

import json
import pathlib
import re

import pytest

np = pytest.importorskip("numpy")
import running_job


@pytest.fixture
def joined(launch, binary, tmp_path):
    """Returns joined(program, *arguments): the results and the output of a job of two workers to which a third comes."""

    def run(program, *arguments):
        with running_job.running(launch, binary, tmp_path / "end", 2, program, *arguments) as job:
            job.resize(3)
            job.goes_on()
            output = job.finish()
        return [json.loads(line) for line in re.findall(r"RESULT (.*)", output)], output

    return run


NUMPY = """
import os, sys, json, numpy, shoal
job = shoal.join()
weights = numpy.random.default_rng(job.rank + job.outside).normal(size=3)
if sys.argv[1] == "registered":
    job.register("weights", lambda: weights, lambda value: numpy.copyto(weights, value))
for step in job.steps(64, 8, epochs=1 << 40):
    stop = step.allreduce(numpy.full(1, float(os.path.exists(sys.argv[2]))))
    if job.rank == 0 and step.number % 50 == 0:
        print("STEP", step.number, flush=True)
    if stop[0]:
        break
print("RESULT", json.dumps([job.rank]), flush=True)
"""


@pytest.mark.parametrize("way", ["registered", "nothing"])
def test_a_worker_that_gets_no_state_says_so(joined, way):
    results, output = joined(NUMPY, way)
    assert len(results) == 3
    assert output.count("has got no state from the others") == (way == "nothing"), output
    assert "[2] shoal: this worker has joined" in output or way == "registered", output
