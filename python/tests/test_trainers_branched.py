"""The gradients that the trainers of other people show to the code of a user, of a model with a
branch that some steps leave out, while workers join and are lost; and those of a step that is left.
"""

import json
import pathlib
import threading

import pytest

torch = pytest.importorskip("torch")
import running_job
import trainers_branched as branched
import trainers_common as common
from torch_world import TRAINERS, main, world

WORKER = pathlib.Path(branched.__file__)
# The seeds of the order of samples.
SEEDS = {"transformers": 42, "accelerate": common.SEED, "lightning": 7}


@pytest.fixture(params=SEEDS)
def training(request, launch, binary, tmp_path):
    """Returns training(n, steps, …): a job of n workers with one of the trainers, whose updates of
    these numbers, from 0 on, use the branch for half of their samples; as a context manager around
    a running_job.Running, which is killed at the end of the block.
    """
    pytest.importorskip(request.param)

    def start(n, steps, **config):
        """The job, with what else the config of trainers_branched.py has; `start.check` is a check
        of what it has written.
        """
        seed = SEEDS[request.param]
        batches = common.undisturbed_batches(branched.SAMPLES, branched.BATCH, seed, 1)
        needing = [i for step in steps for i in batches[step][::2]]
        start.check = lambda: check(tmp_path, batches, needing)
        config = dict(config, trainer=request.param, out=str(tmp_path), branched=needing)
        return running_job.running(
            launch,
            binary,
            tmp_path / "end",
            n,
            WORKER,
            json.dumps({"gates": [], "lost": [], **config}),
            prefork=TRAINERS,
        )

    return start


def check(folder, batches, needing):
    """Check the ledger in a folder: gradients and parameters of a plain loop over these batches,
    of which the samples `needing` use the branch.
    """
    lines, data = common.read_ledger(folder), common.Data(branched.SAMPLES)
    assert [line["step"] for line in lines] == list(range(1, len(batches) + 1))
    model = branched.Branched(needing)
    optimizer = branched.make_optimizer(model)
    for line, batch in zip(lines, batches):
        optimizer.zero_grad()
        model(data.x[batch], data.labels[batch], torch.tensor(batch))["loss"].backward()
        wanted = branched.describe_gradients(model)
        optimizer.step()
        wanted.update(branched.describe_parameters(model))
        for key, value in wanted.items():
            assert line[key] == (value and pytest.approx(value, rel=1e-9)), line


def test_a_worker_joins_one_that_is_alone(training, tmp_path):
    """What a worker that is alone has used leaves nothing behind for the first step with another
    one, which does not use it.
    """
    with training(1, [0, 1, 2, 3, 4, 12, 14], gates=[4, 10]) as job:
        job.read_until("GATE 4")
        asked = threading.Thread(target=job.resize, args=(2,))
        asked.start()
        job.wait_for_spare()
        common.open_gate(tmp_path, 4)
        job.read_until("GATE 10")
        asked.join()
        common.open_gate(tmp_path, 10)
        output = job.finish()
    assert "Traceback" not in output, output
    training.check()


def test_workers_are_lost_in_a_step(training):
    """Behind each backward pass, and before each step of the optimizer, parameters have gradients,
    the latter those of all samples, also where lost workers have left some of them.
    """
    with training(3, [0, 2, 4, 5, 8, 11], lost=[5, 9]) as job:
        output = job.finish()
    assert "Traceback" not in output and "generation 3" in output, output
    training.check()


def _break_within_a_step(breaks):
    """Leave a loop, if it `breaks`, after the first of two batches of a step, and make that step
    in the next loop; return the parameters after it. Given to `world`.
    """
    from shoal.accelerate import Accelerator

    torch.manual_seed(common.SEED)
    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=2), torch.nn.Linear(2, 1)
    data = torch.utils.data.DataLoader(torch.randn(32, 2), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, data)
    for ends in ([1] if breaks else []) + [2]:
        for i, x in enumerate(loader, 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            if i == ends:
                break
    return [p.tolist() for p in model.parameters()]


def test_a_loop_that_is_left_within_a_step():
    """The samples of the step come again, and count once."""
    pytest.importorskip("accelerate")
    broken, whole = (world(2, _break_within_a_step, b, modules=TRAINERS.split(",")) for b in (1, 0))
    assert broken == whole


if __name__ == "__main__":
    main(globals())
