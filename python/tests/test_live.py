"""A job changes its mesh while it trains, and loses workers: the losses are those of an undisturbed
training.
"""

import ctypes
import itertools
import os
import pathlib
import re
import signal
import subprocess
import threading
from types import SimpleNamespace

import pytest

numpy = pytest.importorskip("numpy")

import running_job
from live_numpy import reference_losses

import shoal
from shoal.errors import LostError, ShoalError
from shoal._live import packing
from shoal._runtime.view import MeshStatus, View
from shoal.live import _LiveModel

WORKER = pathlib.Path(__file__).with_name("live_numpy.py")
MESHES = ["dp=4", "dp=2,tp=2", "tp=4", "dp=3", "tp=3", "dp=5", "tp=5"]


class Training(running_job.Running):
    """A job on a mesh, driven by the thread of its test."""

    def reshape(self, mesh, *options):
        """Run `shoal reshape` for a mesh, which must succeed; return what the command said. Without
        options it also waits until a step was made on the mesh.
        """
        done = subprocess.run(
            [self._binary, "reshape", self.name, "--mesh", mesh, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=running_job.HANG,
        )
        assert done.returncode == 0, done.stdout + self.output[-3000:]
        if not options:
            self.read_until(f"STEP [0-9]+ on {re.escape(mesh)} ")
        return done.stdout

    def stop(self):
        """Stop the job, and wait for its end; check all losses, and return the meshes in their
        order.
        """
        subprocess.run([self._binary, "stop", self.name], check=True, timeout=running_job.HANG)
        output = self.finish()
        assert "Traceback" not in output, output[-6000:]
        return meshes_of(output)


def meshes_of(output):
    """Check that by this output every step was made once, with the loss of the undisturbed
    training; return the meshes in their order.
    """
    steps = [
        (int(n), mesh, float(loss))
        for n, mesh, loss in re.findall(r"STEP (\d+) on (\S+) loss (\S+)", output)
    ]
    assert [n for n, _, _ in steps] == list(range(len(steps)))
    for (n, mesh, loss), want in zip(steps, reference_losses()):
        assert abs(loss - want) <= 1e-9 * want, (
            f"step {n} on {mesh}: loss {loss}, undisturbed {want}"
        )
    return [mesh for mesh, _ in itertools.groupby(mesh for _, mesh, _ in steps)]


@pytest.fixture
def training(launch, binary, tmp_path, monkeypatch):
    """Returns training(n, mesh): a job of n workers that trains until it is stopped, as a context
    manager around a Training; `more` are further arguments of the worker. The job is killed at the
    end of the block. Other test files import this fixture.
    """
    monkeypatch.setattr(running_job, "Running", Training)
    return lambda n, mesh, *more, worker=WORKER, options=(): running_job.running(
        launch, binary, tmp_path / "end", n, worker, mesh, 1 << 20, *more, options=options
    )


def test_from_every_mesh_to_every_other(training):
    """One training goes from every mesh to every other one, without a step more or less and with
    the losses of one worker.
    """
    walk = ["dp=4"]
    left = {mesh: [m for m in MESHES if m != mesh] for mesh in MESHES}
    while left[walk[-1]]:
        walk.append(left[walk[-1]].pop())
    # as all have as many ways in as out, it ends where it began
    assert len(walk) == len(MESHES) * (len(MESHES) - 1) + 1
    with training(4, "dp=4") as job:
        for mesh in walk[1:]:
            job.reshape(mesh)
        assert job.stop() == walk


def test_state_that_is_flat_over_dp(training):
    """State that is flat over dp, cut without regard to rows, moves from mesh to mesh too."""
    way = ["dp=4", "dp=2,tp=2", "dp=3", "tp=4", "dp=5", "dp=2,tp=2", "dp=4"]
    with training(4, way[0], worker=WORKER.with_name("live_flat.py")) as job:
        for mesh in way[1:]:
            job.reshape(mesh)
        assert job.stop() == way


def test_policies_leave_a_job_that_is_reshaped(training):
    """Under --auto a job on a mesh goes from mesh to mesh as without, and each step has the samples
    that it has in an undisturbed training. Policies change nothing meanwhile and say so once, and a
    setting that a person asks for in between is refused.
    """
    way = ["dp=2", "dp=2,tp=2", "dp=3", "dp=2"]
    options = ("--auto", "--min", "2", "--max", "4")
    with training(2, way[0], options=options) as job:
        nothing = "what may change: nothing, since a job on a mesh keeps its setting"
        if nothing not in job.output:  # it may come before the first step
            job.read_until(nothing)
        for mesh in way[1:]:
            job.reshape(mesh)
            for words in ("size=4", "batch=24", "shares=2:1", "round=4"):
                done = subprocess.run(
                    [job._binary, "set", job.name, words],
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=running_job.HANG,
                )
                assert done.returncode == 1 and "this job has a mesh" in done.stderr, done.stderr
        said = subprocess.run(
            [job._binary, "explain", job.name], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        assert "its policies change nothing, since it has a mesh" in said
        assert len(re.findall(r"  mesh at step", said)) == len(way) - 1, said
        assert job.stop() == way
    assert job.output.count(nothing) == 1
    assert not re.search(r"shoal: change \d+", job.output)


def test_the_plan_is_shown_and_changes_nothing(training):
    """`shoal reshape --dry-run` prints the mesh and the bytes to move, and the job keeps its
    mesh.
    """
    with training(2, "dp=2") as job:
        said = job.reshape("dp=2,tp=2", "--dry-run")
        assert re.search("to +mesh dp=2,tp=2, on 4 workers", said) and re.search(
            "moved +0 bytes from host to host, the least possible is 0", said
        ), said
        assert job.stop() == ["dp=2"]


def test_an_axis_that_the_layout_does_not_name_is_refused(training, launch):
    """The commands and a new job say which axis is wrong and which there are; a running job keeps
    its mesh.
    """
    why = r"mesh pd=3: the layout has no axis pd \(did you mean dp\?\), only dp, tp;"
    with training(2, "dp=2") as job:
        for options in ([], ["--dry-run"]):
            done = subprocess.run(
                [job._binary, "reshape", job.name, "--mesh", "pd=3", *options],
                stderr=subprocess.PIPE,
                text=True,
                timeout=running_job.HANG,
            )
            assert done.returncode == 1 and re.search(
                f"job {job.name} keeps its mesh: {why}", done.stderr
            ), done.stderr
        assert job.stop() == ["dp=2"]
    assert re.search(why, launch(3, WORKER, "pd=3", 3, code=1))


@pytest.mark.parametrize("mesh, then", [("dp=2,tp=2", "dp=1,tp=2"), ("dp=4", "dp=3")])
def test_a_killed_worker_costs_no_step(training, mesh, then):
    """When a worker is killed the job goes on, with the same losses, on the mesh that is left."""
    with training(4, mesh) as job:
        os.kill(job.workers()[1], signal.SIGKILL)
        job.read_until(f"STEP [0-9]+ on {then} ")
        assert job.stop() == [mesh, then]


def test_a_worker_killed_in_a_reshape_leaves_the_old_state(training):
    """When a worker is killed in a reshape the job goes on from the state before it."""
    with training(4, "dp=2,tp=2") as job:
        victim = job.workers()[3]
        running_job.freeze(victim)  # so the reshape waits for it
        subprocess.run(
            [job._binary, "reshape", job.name, "--mesh", "tp=4", "--no-wait"],
            check=True,
            timeout=running_job.HANG,
        )
        os.kill(victim, signal.SIGKILL)
        job.read_until("STEP [0-9]+ on dp=1,tp=2 ")
        assert job.stop() == ["dp=2,tp=2", "dp=1,tp=2"]


def test_what_only_a_lost_worker_had_is_named(training):
    """A job that cannot go on without a lost worker ends, and says which part of the state is
    lost.
    """
    with training(2, "dp=1,tp=2") as job:
        os.kill(job.workers()[1], signal.SIGKILL)
        output = job.finish(code=1)
    assert "mesh dp=1,tp=2 cannot do with 1 worker" in output, output
    assert (
        "14400 bytes of 6 tensors, up the first, are on one worker only, and this job makes no"
        " checkpoints" in output
    ), output


def test_contradictions_are_named(launch):
    """A model that does not fit the layout, and a mesh of another size, are refused with what each
    side says.
    """
    program = WORKER.read_text().replace('"dtype": "f64"', '"dtype": "f32"')
    assert re.search(
        r'rank \d of mesh tp=2 has "\S+" as f64\S+; the layout says f32',
        launch(2, program, "tp=2", 3, code=1),
    )
    output = launch(3, WORKER, "tp=2", 3, code=1)
    said = 'mesh: "tp=2" has 2 ranks, and the job 3 workers: start it with 2, or state a mesh of 3'
    assert said in output, output


def test_alone(alone):
    """A job of one trains without an agent."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import live_numpy; live_numpy.main('', 20)"
    )
    output = alone(program, WORKER.parent)
    assert meshes_of(output.replace("on  ", "on alone ")) == ["alone"] and "END" in output


MODEL = SimpleNamespace(tensors=dict, gradients=len, update=None)
UP = {"name": "up", "dtype": "f64", "shape": (2, numpy.int64(3))}


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"mesh": None}, "mesh=None: a text with the degree of each axis"),
        ({"catalogue": None}, "catalogue=None: a list of tensors as"),
        ({"catalogue": ["up"]}, r"catalogue=\['up'\]: a list of tensors as"),
        ({"catalogue": [{"name": "up"}]}, "catalogue={'name': 'up'}: a list of tensors as"),
        ({"catalogue": [{**UP, "shape": "2,3"}]}, "'shape': '2,3'}: a list of tensors as"),
        ({"build": lambda mesh: 3}, r"build\(mesh\)=3: a model with tensors, gradients, update"),
        ({}, "a collective works on an array .* not on int"),
    ],
)
def test_wrong_arguments_are_named(wrong, said):
    """What is no mesh, catalogue or model is named; the integers of NumPy in shapes are not."""
    given = {"build": lambda mesh: MODEL, "catalogue": [UP], "mesh": "dp=1", **wrong}
    with pytest.raises(TypeError, match=said):
        list(shoal.train(given.pop("build"), layout="", samples=4, batch=2, **given))


PROGRESS = SimpleNamespace(cross_step_boundary=lambda: True)  # of a loop that always goes on


def live_model(build, backend):
    """The model of a job of one rank, whose agent `backend` plays."""
    job = SimpleNamespace(
        _backend=backend, _checkpoints=None, outside=False, rank=0, size=1, mesh=lambda text: text
    )
    return _LiveModel(job, build, "", [], "dp=1")


def test_a_view_that_comes_while_the_model_is_built_is_followed():
    """Where the members change while the model of a mesh is built, the agent is asked again, for
    what has changed may be the mesh.
    """
    asked = []

    def ask_mesh():
        """Note which view the question was for."""
        asked.append(backend.view)
        return MeshStatus()

    def build(_):
        """Build a model, while another view comes."""
        backend.view = later
        return SimpleNamespace(tensors=dict, gradients=None, update=None)

    first, later = View(generation=1), View(generation=2)
    backend = SimpleNamespace(view=first, ask_mesh=ask_mesh, declare_layout=lambda _: "")
    assert live_model(build, backend).follow_mesh(PROGRESS)
    assert asked == [first, later]


@pytest.mark.parametrize("adopts", [False, True])
def test_a_worker_that_is_lost_while_the_model_begins(adopts):
    """Where a program asks the others when its model begins, and one is lost, the model is built
    and begins once more: what it had had no values.
    """
    view, built = View(generation=1), []

    def initialize():
        """Lose a worker the first time."""
        if len(built) == 1:
            raise LostError("worker 1 is lost")

    def build(_):
        """Build a model that begins by itself."""
        model = SimpleNamespace(tensors=dict, gradients=None, update=None, initialize=initialize)
        built.append(model)
        if adopts:
            built[-1].adopt = lambda _: None
        return built[-1]

    backend = SimpleNamespace(
        view=view, ask_mesh=MeshStatus, declare_layout=lambda _: "", buffer=bytearray
    )
    live = live_model(build, backend)
    with pytest.raises(LostError):
        live.follow_mesh(PROGRESS)
    assert live.model is None
    backend.ask_mesh = lambda: MeshStatus(next_mesh="dp=1", nbytes=8)
    with pytest.raises(ShoalError, match="no state to move yet"):
        live.follow_mesh(PROGRESS)
    backend.ask_mesh = MeshStatus
    assert live.follow_mesh(PROGRESS)
    assert len(built) == 2 and live.model is built[1]


def test_state_that_cannot_be_written_to_is_named():
    """A number that is no array would keep its value where the state is to come from others, and
    no tensor has changed when that is said.
    """
    memory = (ctypes.c_ubyte * 128)(*[1] * 128)
    tensors = {"bias": numpy.zeros(2), "count": numpy.int64(3)}
    with pytest.raises(ShoalError, match="tensor count .* this is of int64; for one number"):
        packing.unpack(memory, tensors)
    assert not tensors["bias"].any()
    packing.unpack(memory, {**tensors, "count": numpy.zeros((), "int64")})
    assert tensors["bias"].all()


def test_a_system_without_threads_can_change_the_mesh(monkeypatch):
    """Where no thread can allocate memory ahead, training goes on without it."""

    def refuse(_):
        """Start no thread, as where a user has as many as may be."""
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    backend = SimpleNamespace(
        view=View(generation=1), ask_mesh=MeshStatus, declare_layout=lambda _: ""
    )
    live = live_model(lambda _: MODEL, backend)
    live.allocate_ahead()
    assert live.follow_mesh(PROGRESS) and live.model is MODEL
