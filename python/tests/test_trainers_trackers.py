"""What one process does for all with Accelerate, as its trackers: on rank 0, whichever worker that
is. Functions that tests give to `world` run on each rank of a job, in its own process.
"""

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
from torch_world import TRAINERS, main, world


def _accelerator(told):
    """An Accelerator with a tracker that writes down in a list what it is asked."""
    from accelerate.tracking import GeneralTracker
    from shoal.accelerate import Accelerator

    class Tracker(GeneralTracker):
        """A tracker that keeps what is logged."""

        name, requires_logging_directory, tracker = "list", False, told

        def start(self):
            """Begin a run."""
            told.append("start")

        def store_init_configuration(self, values):
            """Keep the configuration."""
            told.append(values)

        def log(self, values, step=None, **_):
            """Keep what is logged."""
            told.append([step, values])

    return Accelerator(cpu=True, log_with=Tracker())


def _run_on_one():
    """Run what is for one process; return which functions ran, and what the tracker was asked."""
    ran, told = [], []
    accelerator = _accelerator(told)
    for name in ("on_main_process", "on_local_main_process", "on_last_process"):
        getattr(accelerator, name)(ran.append)(name)
    accelerator.on_process(process_index=1)(ran.append)("on_process 1")
    accelerator.on_local_process(ran.append, local_process_index=0)("on_local_process 0")
    accelerator.init_trackers("run", {"rate": 0.1})
    accelerator.log({"loss": 0.5}, step=3)
    return [ran, told]


def test_what_is_for_one_process_runs_on_one():
    """A function that Accelerate has one process run is run by that worker alone, and rank 0 alone
    has trackers.
    """
    first = ["on_main_process", "on_local_main_process", "on_last_process", "on_local_process 0"]
    logged = ["start", {"rate": 0.1}, [3, {"loss": 0.5}]]
    found = world(2, _run_on_one, modules=TRAINERS.split(","))
    assert found == [[first, logged], [["on_process 1"], []]]


def _become_rank_0():
    """Log before and after this worker becomes rank 0; return what the tracker was asked, and what
    a function has run with that is for the main process.
    """
    import shoal

    told, ran, job = [], [], shoal.join()
    accelerator = _accelerator(told)
    run = accelerator.on_main_process(ran.append)
    accelerator.init_trackers("run", config={"rate": 0.1})
    blank = accelerator.get_tracker("list", unwrap=False).__class__.__name__
    accelerator.log({"loss": 0.5}, step=1)
    run(1)
    job.rank = 1 - job.rank  # as after a loss
    run(2)
    accelerator.log({"loss": 0.4}, step=2)
    accelerator.log({"loss": 0.3}, step=3)
    return [blank, told, ran]


def test_another_worker_becomes_rank_0():
    """A worker that becomes rank 0 begins the trackers as the one before has done, and logs and
    runs what is for the main process from then on; one that is not any more does neither.
    """
    before, after = world(2, _become_rank_0, modules=TRAINERS.split(","))
    begun = ["start", {"rate": 0.1}]
    assert before == ["Tracker", [*begun, [1, {"loss": 0.5}]], [1]]
    assert after == ["GeneralTracker", [*begun, [2, {"loss": 0.4}], [3, {"loss": 0.3}]], [2]]


def _save_by_rank_1(folder):
    """Have rank 1 write a checkpoint, as where rank 0 is lost before it has; return the names of
    the files, and whether this worker is the main process after it.
    """
    from unittest import mock

    import torch
    from shoal.accelerate import Accelerator

    net = torch.nn.Linear(2, 1)
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2))),
    )

    def write_once(job, write, _):
        """What rank 1 has written."""
        return write() if job.rank == 1 else folder

    with mock.patch("shoal.accelerate.write_once", write_once):
        accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    return [sorted(os.listdir(folder)), accelerator.is_main_process]


def test_another_worker_writes_all_of_a_checkpoint(tmp_path):
    """A checkpoint that another worker than rank 0 writes has the same files."""
    found = world(2, _save_by_rank_1, str(tmp_path), modules=TRAINERS.split(","))
    files = ["model.safetensors", "optimizer.bin", "random_states_0.pkl", "shoal-place.json"]
    assert found == [[files, True], [files, False]]


if __name__ == "__main__":
    main(globals())
