"""Sends what shoal knows of a training to other tools that draw it.

    import shoal
    shoal.log.to("tensorboard", "runs/digits")    # on every worker, before the loop

One worker writes at a time, the first one, and the next one goes on when that is lost: what the
program reports by job.report, and every ten seconds what steps take and where their time goes.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import queue
import secrets
import sys
import threading
from time import perf_counter
from typing import Any, Callable, Dict, Optional, Tuple, Union

from ._runtime.arguments import wrong_type
from ._runtime.listeners import LISTENERS, Listener
from ._runtime.log import log_line
from .world import World

__all__ = ["to"]

_SPAN = 10.0  # seconds of steps whose means are written
_MOST_WAITING = 1000  # writes that wait for a slow tool; more are left out
_LAST_WAIT = 10.0  # seconds that the end of the process waits for what is still to be written


def to(kind: str, place: Any, every: float = _SPAN) -> None:
    """Have what this worker reports, and what its steps take, written by another tool too.

        shoal.log.to("tensorboard", "runs/digits")            # a folder
        shoal.log.to("mlflow", "http://tracking:5000")        # where MLflow keeps its runs

    Call it once on every worker, before the loop; only the first one writes, and when it is lost
    the next first one goes on. After job.leave() a process that joins again calls it again. What
    job.report gets is written under its names, at the step of the job, and every `every` seconds
    the means over these steps, on this worker:

        shoal/step_seconds            a whole step
        shoal/data_seconds            waiting for samples
        shoal/compute_seconds         computing
        shoal/optimizer_seconds       updating
        shoal/exchange_seconds        the rest: waiting for the network and for other workers
        shoal/samples_per_second, shoal/batch, shoal/workers

    The tool is imported on the worker that writes, at its first number, and writes on a thread of
    its own, for which training never waits. Where it fails, the training goes on, and a line says
    why. Raises ValueError for a kind that there is not and for seconds below 0, and TypeError for
    a place that is no path or address and for seconds that are no number.
    """
    if kind not in _TOOLS:
        raise ValueError(f"kind={kind!r}: there are {', '.join(map(repr, _TOOLS))}")
    if not isinstance(place, (str, os.PathLike)):
        raise wrong_type("place", place, "a folder, or an address of MLflow")
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise wrong_type("every", every, "seconds, a number from 0 on")
    if not every >= 0:
        raise ValueError(f"every={every!r}: it is seconds, a number from 0 on")
    # They register what they do at exit, which cannot be done any more where a tool that needs them
    # is imported as the program ends.
    for needed in ("thread", "process"):
        importlib.import_module(f"concurrent.futures.{needed}")
    writer = _Writer(kind, os.fspath(place))
    # Behind what the program does at exit, where it was registered after this.
    atexit.register(writer.pause, True)
    LISTENERS.append(_Series(writer, every))


class _TensorBoard:
    """Writes the files that TensorBoard reads."""

    def __init__(self, name: str, key: str, folder: str) -> None:
        """Begin a file in a folder, beside those of workers that were the first one before."""
        tool = importlib.import_module("torch.utils.tensorboard")
        self._writer = tool.SummaryWriter(folder)

    def write(self, numbers: Dict[str, float], step: int) -> None:
        """Write numbers of a step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, end: str) -> None:
        """End the file."""
        self._writer.close()


class _MLflow:
    """Writes into a run of MLflow, the same on whichever worker of the job is the first one."""

    def __init__(self, name: str, key: str, address: str) -> None:
        """Go on with MLflow's run of the run of a job that has this key, or begin it. `name` is the
        name of the job.
        """
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=address)
        key = key.replace("'", "%27")  # it cannot be written in a text of MLflow's filters
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        found = self._client.get_experiment_by_name(title)
        experiment = found.experiment_id if found else self._client.create_experiment(title)
        runs = self._client.search_runs([experiment], f"tags.shoal_run = '{key}'", max_results=1)
        if not runs:
            runs = [self._client.create_run(experiment, tags={"shoal_run": key}, run_name=name)]
        run = runs[0]
        self._run = run.info.run_id

    def write(self, numbers: Dict[str, float], step: int) -> None:
        """Write numbers of a step."""
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self, end: str) -> None:
        """Leave the run to the worker that goes on with it, or where this is the end, end it."""
        if end:
            self._client.set_terminated(self._run, end)


_TOOLS: Dict[str, Callable[[str, str, str], Any]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow}


def _open_step(job: World) -> Any:
    """The shoal.Step under way; None = there is none."""
    return getattr(job, "step", None)


def _end_status(job: World, died: bool) -> str:
    """How MLflow calls the end of a run in which the program of this worker has ended, by itself or
    because it died: "" = other workers go on.
    """
    step = _open_step(job)
    if not died and (step is None or step.committed):
        return "FINISHED"
    return "FAILED" if job.size == 1 else ""


# What a thread that writes gets: the name of the job, numbers, and their step; or, as the last, how
# the run has ended, as `_end_status` has it.
_Item = Union[str, Tuple[str, Dict[str, float], int]]


class _Writer:
    """Has a tool write on a thread of its own, which begins with the first number. Its methods are
    for the thread of the training loop, but those that say other; only `pause` waits, if asked to.
    """

    def __init__(self, kind: str, place: str) -> None:
        """Write by a tool into a place."""
        self._kind, self._place = kind, place
        # The name of the run of the job, alike on its workers; else a new one.
        self._key = os.environ.get("SHOAL_JOB_RUN") or secrets.token_hex(8)
        self._waiting: queue.Queue[_Item] = queue.Queue(_MOST_WAITING)  # for `_thread`
        self._job: Optional[World] = None  # that wrote last
        self._thread: Optional[threading.Thread] = None  # None = it was paused
        self._before: Optional[threading.Thread] = None  # that of before the last pause
        self._has_warned = False  # people were told that something is left out

    def write(self, job: World, numbers: Dict[str, float], step: int) -> None:
        """Have numbers of a step of a job written."""
        self._job = job
        if self._thread is None:
            self._waiting = queue.Queue(_MOST_WAITING)
            thread = threading.Thread(
                target=self._run, args=(self._waiting, self._before), name="shoal-log", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # too many threads, or the program ends
                return self._warn_once(str(error))
            self._thread = thread
        try:
            self._waiting.put_nowait((job.name, numbers, step))
        except queue.Full:
            self._warn_once("it is slower than what is to be written, of which some is left out")

    def pause(self, wait: bool = False) -> None:
        """Have the tool closed when all is written, because another worker goes on, or this process
        ends: then `wait` for that for a while. Nothing where too much waits before it: the next
        call tries again.
        """
        if self._thread is not None:
            # Python keeps there what has ended a program that nobody has caught.
            died = getattr(sys, "last_type", None) is not None
            end = _end_status(self._job, died) if wait and self._job is not None else ""
            try:
                self._waiting.put(end, wait, _LAST_WAIT)
            except queue.Full:
                return
            self._before, self._thread = self._thread, None
        if wait and self._before is not None:
            self._before.join(_LAST_WAIT)

    def _warn_once(self, why: str) -> None:
        """Say on any thread, once, why something is not written."""
        if not self._has_warned:
            self._has_warned = True
            log_line(f"shoal.log.to({self._kind!r}, {self._place!r}): {why}; the training goes on")

    def _run(self, waiting: queue.Queue[_Item], before: Optional[threading.Thread]) -> None:
        """Write what comes until nothing comes any more, after all that the thread before has
        written; the body of the thread.
        """
        if before is not None:
            before.join()
        tool: Optional[Any] = None
        while True:
            item = waiting.get()
            try:
                if isinstance(item, str):
                    if tool is not None:
                        tool.close(item)
                    return
                name, numbers, step = item
                if tool is None:
                    tool = _TOOLS[self._kind](name, self._key, self._place)
                tool.write(numbers, step)
            except Exception as error:  # whatever a tool of others raises
                self._warn_once(f"{type(error).__name__}: {error}")
                if isinstance(item, str):
                    return


class _Series(Listener):
    """Makes numbers of steps and reports, for a writer. The thread of the training loop uses it."""

    def __init__(self, writer: _Writer, every: float) -> None:
        """Write by a writer, means over `every` seconds."""
        self._writer, self._every = writer, every
        self._step = 0  # optimizer steps that are committed
        self._began = 0.0  # when the steps began whose means come next; 0 = with the next step
        self._steps = self._samples = 0  # of these
        self._sums = [0.0, 0.0, 0.0]  # seconds of data, compute and update in these

    def _write(self, job: World, numbers: Dict[str, float], at: int) -> None:
        """Write numbers of a step, if this is the first worker."""
        if job.first:
            self._writer.write(job, numbers, at)
        else:
            self._writer.pause()

    def on_report(self, job: World, numbers: Dict[str, float]) -> None:
        """Have the tool write what the program reports; numbers alone."""
        step = _open_step(job)
        at = self._step if step is None else step.number
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        self._write(job, finite, at)

    def on_step(self, job: World, step: int, samples: int, steps: int) -> None:
        """Count the steps of a commit, and have the tool write means when there are enough."""
        now = perf_counter()
        self._step = step
        if not self._began:
            self._began = now
            return
        self._steps += steps
        self._samples += samples
        for i, seconds in enumerate(job._backend.step_timer.last_step_seconds):
            self._sums[i] += seconds
        if now - self._began < self._every:
            return
        whole = (now - self._began) / self._steps
        data, compute, update = (s / self._steps for s in self._sums)
        numbers = {
            "step_seconds": whole,
            "data_seconds": data,
            "compute_seconds": compute,
            "optimizer_seconds": update,
            "exchange_seconds": max(whole - data - compute - update, 0.0),
            "samples_per_second": self._samples / (now - self._began),
            "batch": samples / steps,
            "workers": job.size,
        }
        self._write(job, {f"shoal/{name}": value for name, value in numbers.items()}, step)
        self._began, self._steps, self._samples, self._sums = now, 0, 0, [0.0, 0.0, 0.0]
