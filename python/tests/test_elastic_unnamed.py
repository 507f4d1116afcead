"""Scripts that name nothing for workers that join: these have the same state as the others, or it
is said that they have not.
"""

import copy
import json
import pathlib
import re

import pytest

np = pytest.importorskip("numpy")
import running_job


@pytest.fixture
def joined(launch, binary, tmp_path):
    """Returns joined(program, *arguments): runs a job of two workers, to which a third comes, to
    its end, and returns the results of all (the JSON after RESULT) and what was printed. `prefork`
    is that of the fixture `launch`.
    """

    def run(program, *arguments, prefork=None):
        """What `joined` says. The program gets the file that ends it as its last argument."""
        end = tmp_path / "end"
        with running_job.running(
            launch, binary, end, 2, program, *arguments, prefork=prefork
        ) as job:
            job.resize(3)
            job.wait_for_new_step()
            output = job.finish()
        return [json.loads(line) for line in re.findall(r"RESULT (.*)", output)], output

    return run


TORCH = pathlib.Path(__file__).with_name("elastic_unnamed.py")
REGISTERED = {
    "scheduler": ["LambdaLR", "optimizer", "parameters"],
    "plain": ["LambdaLR", "mean", "model", "moving average", "optimizer"],
    "scaled": ["GradScaler", "LambdaLR", "model", "optimizer"],
    "chained": [
        "ChainedScheduler",
        "ExponentialLR",
        "LambdaLR",
        "LambdaLR 2",
        "OneCycleLR",
        "ReduceLROnPlateau",
        "SequentialLR",
        "model",
        "optimizer",
        "optimizer 2",
    ],
}


@pytest.mark.parametrize("kind", list(REGISTERED))
def test_what_belongs_to_the_model_is_handed_over(joined, kind):
    """What belongs to a model is registered although the program names nothing; a worker that joins
    has the parameters and random numbers of the others.
    """
    torch = pytest.importorskip("torch")
    if kind == "scaled" and not hasattr(torch.amp, "GradScaler"):
        pytest.skip("PyTorch has GradScalers for GPUs only before 2.3")
    results, output = joined(TORCH, kind, prefork="torch")
    assert len(results) == 3 and "Traceback" not in output, output
    assert len({r[2:4] for r in map(tuple, results)}) == 1, f"the workers differ: {results}"
    always = {"random state", "size of buckets", "devices", "loops over epochs"}
    registered = [set(r[4]) - always for r in results]
    assert registered == [{"trained parameters", *REGISTERED[kind]}] * 3
    ((number, *drawn),) = [json.loads(line) for line in re.findall(r"JOINED (.*)", output)]
    assert [number, *drawn] in [json.loads(line) for line in re.findall(r"DRAWN (.*)", output)], (
        "random numbers are not as rank 0's"
    )


def test_only_what_is_alive_and_was_made_is_noted(monkeypatch):
    """The registry has the objects that belong to a model, and no copies and no garbage."""
    torch = pytest.importorskip("torch")
    from shoal.torch import registry

    net = torch.nn.Linear(2, 2)
    assert registry.belonging_to([net]) == []
    scaler, off = (torch.cuda.amp.GradScaler(enabled=False) for _ in range(2))
    monkeypatch.setattr(scaler, "is_enabled", lambda: True)  # it can be on a GPU alone
    first, second = torch.optim.SGD(net.parameters(), lr=1), torch.optim.Adam([net.bias])
    scheduler = torch.optim.lr_scheduler.StepLR(second, 1)
    copies = copy.copy(first), copy.deepcopy(first)
    circle = torch.optim.SGD(net.parameters(), lr=1)
    circle.itself = circle
    del circle
    assert registry.belonging_to([net]) == [first, second, scheduler, scaler]
    assert (
        registry.belonging_to([net, first, scheduler]) == [second, scaler]
        and copies
        and not off.is_enabled()
    )
    del first
    assert registry.belonging_to([net, second]) == [scheduler, scaler]

    class Around(torch.optim.Optimizer):
        """An optimizer around another one, as Accelerate makes them."""

        def __init__(self, optimizer):
            """Around an optimizer."""
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    around = torch.optim.lr_scheduler.StepLR(Around(second), 1)
    assert registry.belonging_to([net, second]) == [scheduler, around, scaler]


def test_what_is_made_in_the_loop_is_missed_aloud(launch, binary, tmp_path):
    """A new worker that lacks what the others have made in the loop ends with an error that names
    it.
    """
    pytest.importorskip("torch")
    end = tmp_path / "end"
    with running_job.running(launch, binary, end, 2, TORCH, "late", prefork="torch") as job:
        job.resize(3, "--no-wait")
        job.read_until(
            r"ShoalError: the state comes from workers that registered \[.*'ExponentialLR'.*make"
            r" all of it before the loop"
        )
        job.finish()


def test_a_state_that_cannot_travel_is_left_aloud(joined):
    """The user is told of a state that is not sent."""
    pytest.importorskip("torch")
    results, output = joined(TORCH, "odd", prefork="torch")
    assert len(results) == 3 and "Traceback" not in output, output
    assert (
        "workers that join do not get the state of a Odd that was made here: Odd/odd is a object"
        in output
    ), output


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
    """A worker that joins tells the user where nothing is registered, and is silent where something
    is.
    """
    results, output = joined(NUMPY, way)
    assert len(results) == 3
    assert output.count("has got no state from the others") == (way == "nothing"), output
    assert "[2] shoal: this worker has joined" in output or way == "registered", output
