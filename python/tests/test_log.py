"""What shoal.log.to has other tools write: reports, and what steps take. The tools are doubles."""

import os
import queue
import subprocess
import sys
import threading
import types

import numpy
import pytest

import shoal
from shoal._runtime import listeners


class Writer:
    """What SummaryWriter is, for tests: keeps what it gets."""

    made = []

    def __init__(self, folder):
        """Of a folder."""
        self.folder, self.numbers, self.closed = folder, [], False
        Writer.made.append(self)

    def add_scalar(self, name, value, step):
        """Keep a number of a step."""
        self.numbers.append((name, value, step))

    def flush(self):
        """Nothing is held back."""

    def close(self):
        """Note that it is closed."""
        self.closed = True


class Client:
    """What MlflowClient is, for tests: all that are made have the same runs."""

    runs, metrics, ended = [], [], []

    def __init__(self, tracking_uri):
        """Of an address."""
        assert tracking_uri == "http://tracking:5000"

    def get_experiment_by_name(self, name):
        """None has been created."""

    def create_experiment(self, name):
        """Its id."""
        return "7"

    def search_runs(self, experiments, text, max_results):
        """The runs with the tag that the text asks for; a text of MLflow's ends at its quote."""
        assert text.count("'") == 2
        return [run for run in self.runs if f"tags.shoal_run = '{run.tag}'" == text]

    def create_run(self, experiment, tags, run_name):
        """A new run."""
        run = types.SimpleNamespace(tag=tags["shoal_run"], info=types.SimpleNamespace(run_id="r"))
        self.runs.append(run)
        return run

    def set_terminated(self, run, status):
        """Note that a run is over."""
        self.ended.append((run, status))

    def log_metric(self, run, name, value, step):
        """Keep a number of a step."""
        self.metrics.append((run, name, value, step))


@pytest.fixture(autouse=True)
def tools(monkeypatch):
    """Doubles of both tools, and nobody who listens from before."""
    module = types.SimpleNamespace
    monkeypatch.setitem(sys.modules, "torch", module(utils=None))
    monkeypatch.setitem(sys.modules, "torch.utils", module())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "mlflow", module(MlflowClient=Client))
    monkeypatch.setattr(listeners, "LISTENERS", listeners.LISTENERS)
    listeners.LISTENERS.clear()
    Writer.made, Client.runs, Client.metrics, Client.ended = [], [], [], []
    yield
    listeners.LISTENERS.clear()


def train(steps=4):
    """A job of one worker that makes some steps of 8 samples."""
    job = shoal.join()
    for step in job.steps(64, batch=8, steps=steps):
        step.allreduce(numpy.ones(1))
        job.report(loss=step.number + 0.5, bad=float("nan"))
    leave(job)


def leave(job):
    """Leave a job, and wait until the tools have written all of it."""
    made = [*listeners.LISTENERS]
    job.leave()
    for listener in made:
        listener._writer.pause(wait=True)


def test_steps_and_reports_are_written():
    """Reports are written at the step of the job, without what is no number, and means of steps
    with all their parts, which add up.
    """
    shoal.log.to("tensorboard", "runs/x", every=0)
    assert Writer.made == []  # nothing is imported or made before there is something to write
    train()
    (writer,) = Writer.made
    assert writer.folder == "runs/x"
    losses = [(value, step) for name, value, step in writer.numbers if name == "loss"]
    assert losses == [(0.5, 0), (1.5, 1), (2.5, 2), (3.5, 3)]
    means = {name: value for name, value, step in writer.numbers if step == 3 and "/" in name}
    assert sorted(means) == [
        f"shoal/{name}"
        for name in (
            *("batch", "compute_seconds", "data_seconds", "exchange_seconds", "optimizer_seconds"),
            *("samples_per_second", "step_seconds", "workers"),
        )
    ]
    assert means["shoal/batch"] == 8 and means["shoal/workers"] == 1
    assert not any(name == "bad" for name, _, _ in writer.numbers)
    assert writer.closed


def test_means_are_of_a_span():
    """With a span that does not end, no means are written."""
    shoal.log.to("tensorboard", "runs/x", every=1e9)
    train()
    assert {name for name, _, _ in Writer.made[0].numbers} == {"loss"}


def test_mlflow_goes_on_with_its_run(monkeypatch):
    """Whoever is the first worker writes into the same run of MLflow, on whichever host."""
    monkeypatch.setenv("SHOAL_JOB_RUN", "abc")
    for here in "a", "b":
        monkeypatch.setenv("SHOAL_RUN", here)
        shoal.log.to("mlflow", "http://tracking:5000")
        train(2)
    assert [run.tag for run in Client.runs] == ["abc"]
    assert {run for run, _, _, _ in Client.metrics} == {"r"}
    assert Client.ended == [("r", "FINISHED")] * 2


def test_each_job_of_one_has_a_run_of_its_own(monkeypatch):
    """Though they have the same number of a process, as those of containers have too."""
    monkeypatch.delenv("SHOAL_JOB_RUN", raising=False)
    for steps in 1, 2:
        shoal.log.to("mlflow", "http://tracking:5000")
        train(steps)
    assert len(Client.runs) == 2


def test_mlflow_finds_a_run_whose_name_has_an_apostrophe(monkeypatch):
    """In what MLflow is asked it ends a text."""
    monkeypatch.setenv("SHOAL_JOB_RUN", "o'neill/7")
    for _ in range(2):
        shoal.log.to("mlflow", "http://tracking:5000")
        train(1)
    assert len(Client.runs) == 1 and len(Client.metrics) == 2


def test_each_job_of_a_process_has_numbers_of_its_own():
    """What a job has written into one folder, the next one writes into its own alone."""
    for folder, steps in ("runs/1", 3), ("runs/2", 2):
        shoal.log.to("tensorboard", folder, every=1e9)
        train(steps)
    written = [(w.folder, [step for _, _, step in w.numbers]) for w in Writer.made]
    assert written == [("runs/1", [0, 1, 2]), ("runs/2", [0, 1])]


@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_mlflow_is_not_told_that_a_training_is_over_whose_first_worker_dies(
    monkeypatch, size, amid
):
    """By an error that nobody catches, or amid a step. The others go on with the run, and where
    there are none it has failed.
    """
    shoal.log.to("mlflow", "http://tracking:5000")
    job = shoal.join()
    for step in job.steps(64, batch=8, steps=2):
        job.report(loss=1)
        if amid and step.number == 1:
            break
        step.allreduce(numpy.ones(1))
    if not amid:
        monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
    monkeypatch.setattr(job, "size", size)
    for listener in listeners.LISTENERS:
        listener._writer.pause(wait=True)
    assert Client.ended == ([("r", "FAILED")] if size == 1 else [])
    monkeypatch.undo()
    job.leave()


def test_rounds_count_as_their_optimizer_steps():
    """Of rounds of three steps, and a shorter one at the end of an epoch of eight."""
    shoal.log.to("tensorboard", "runs/x", every=0)
    job = shoal.join()
    for step in job.steps(64, batch=8, steps=8, local_steps=3):
        if step.ends_round:
            step.allreduce(numpy.ones(1))
    leave(job)
    numbers = Writer.made[0].numbers
    batches = [(value, step) for name, value, step in numbers if name == "shoal/batch"]
    assert batches == [(8, 6), (8, 8)]  # means begin behind the first commit


def test_a_tool_that_fails(capfd, monkeypatch):
    """Where a tool fails the training goes on, and one line says why."""
    monkeypatch.setattr(Client, "log_metric", lambda *_, **__: 1 / 0)
    shoal.log.to("mlflow", "http://tracking:5000")
    train()
    said = capfd.readouterr().err
    assert said.count("ZeroDivisionError") == 1 and "the training goes on" in said


def test_no_thread_can_be_started(capfd, monkeypatch):
    """The training goes on, one line says why nothing is written, and the next number tries
    again.
    """
    start, failing = threading.Thread.start, [True]

    def refuse(thread):
        """As of a process that has as many threads as it may have."""
        if failing[0] and thread.name == "shoal-log":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    shoal.log.to("tensorboard", "runs/x", every=1e9)
    job = shoal.join()
    for loss in range(2):
        job.report(loss=loss)
    assert capfd.readouterr().err.count("can't start new thread; the training goes on") == 1
    assert Writer.made == []
    failing[0] = False
    job.report(loss=2)
    leave(job)
    assert Writer.made[0].numbers == [("loss", 2, 0)]


def test_a_slow_tool_is_not_waited_for_when_another_worker_goes_on():
    """Where it has as much before it as it may, it is closed later."""

    class Queue(queue.Queue):
        """A queue in which nobody waits without end for room."""

        def put(self, item, block=True, timeout=None):
            """As the queue's own."""
            assert not block or timeout is not None, "waits for the tool"
            super().put(item, block, timeout)

    writer = shoal.log._Writer("tensorboard", "runs/x")
    writer._waiting, writer._thread = Queue(1), threading.Thread()
    writer._waiting.put_nowait(("job", {"loss": 1.0}, 1))
    writer.pause()
    assert writer._waiting.get_nowait() is not None and writer._thread is not None
    writer.pause()
    assert writer._waiting.get_nowait() == "" and writer._thread is None


def test_a_worker_that_is_the_first_one_again_loses_nothing(monkeypatch):
    """Where a slow tool has not written yet what came before the pause, all is written in order,
    and the run ends with the last of it. The tool goes on when the last item waits for it.
    """
    going, add = threading.Event(), Client.log_metric

    class Queue(queue.Queue):
        """A queue whose end is what the tool waits for."""

        def put(self, item, *arguments, **options):
            """As the queue's own."""
            super().put(item, *arguments, **options)
            if item == "FINISHED":
                going.set()

    def log_metric(*arguments, **options):
        """Keep a number once the tool goes on."""
        assert going.wait(600)
        add(*arguments, **options)

    monkeypatch.setattr(Client, "log_metric", log_metric)
    monkeypatch.setattr(queue, "Queue", Queue)
    writer = shoal.log._Writer("mlflow", "http://tracking:5000")
    job = types.SimpleNamespace(name="job", size=1)
    for number in range(6):
        writer.write(job, {"loss": number}, number)
        if number % 2:
            writer.pause()
    writer.write(job, {"loss": 6}, 6)
    assert not going.is_set()
    writer.pause(wait=True)
    assert [step for _, _, _, step in Client.metrics] == list(range(7))
    assert Client.ended == [("r", "FINISHED")]


_IMPORTED_LATE = """
import sys, threading, types

threading.main_thread().join()  # the program ends before this is imported
import concurrent.futures.process, concurrent.futures.thread


def MlflowClient(tracking_uri):
    return types.SimpleNamespace(
        get_experiment_by_name=lambda title: types.SimpleNamespace(experiment_id="7"),
        search_runs=lambda *_, **__: [types.SimpleNamespace(info=types.SimpleNamespace(run_id=1))],
        log_metric=lambda run, name, value, step: print(name, value, file=sys.stderr),
        set_terminated=lambda run, status: print(status, file=sys.stderr),
    )
"""


@pytest.mark.parametrize("at_exit", [False, True])
def test_a_tool_that_is_imported_when_the_program_has_ended(tmp_path, at_exit):
    """What a short program has reported, or reports at its exit, is written then, and its run
    ends.
    """
    (tmp_path / "mlflow.py").write_text(_IMPORTED_LATE)
    program = "import atexit, shoal; shoal.log.to('mlflow', 'x'); job = shoal.join(); "
    program += "atexit.register(job.report, loss=1)" if at_exit else "job.report(loss=1)"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stderr.split("\n") == ["loss 1", "FINISHED", ""]


def test_wrong_arguments():
    """A kind that there is not, and a place that is none, are refused, with what there is."""
    with pytest.raises(ValueError, match="'tensorboard', 'mlflow'"):
        shoal.log.to("wandb", "x")
    with pytest.raises(TypeError, match="place"):
        shoal.log.to("tensorboard", 3)
    assert listeners.LISTENERS == []
