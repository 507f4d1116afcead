"""A chain of layers has the losses of a plain loop on every mesh, while meshes change and workers
are killed, and refuses what it cannot train.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import chain_torch
import running_job
import shoal
import shoal.torch
import test_live
from shoal.torch.chain.layers import Layers
from shoal.torch.chain.planned import read_mesh
from shoal.torch.chain.stage import Program, Stage
from torch import nn
from torch.nn import functional as F

WORKER = pathlib.Path(__file__).with_name("chain_torch.py")
MESHES = [
    *["dp=4", "pp=4", "pp=2,dp=2", "dp=2,pp=2(2/3;micro=2;ahead=3/1)"],
    *["dp=2(5/1),pp=2(4/1;micro=1;ahead=9/3)", "pp=4(0/1/0/4;micro=5)"],
]


@pytest.fixture(autouse=True)
def set_for_all(monkeypatch):
    """Gives each test a job of one that no other test has joined, has torch compute with one
    thread, and puts back what the layers of a test set.
    """
    monkeypatch.setattr(shoal.job, "_current", None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


def assert_close(losses, context):
    """The losses are those of the plain loop, to rounding."""
    for step, (got, want) in enumerate(zip(losses, chain_torch.plain_losses())):
        assert abs(got - want) <= 1e-9 * want, f"{context}, step {step}: {got}, want {want}"


def test_losses_on_every_mesh(launch, tmp_path):
    """The losses do not depend on the mesh, and all ranks have them."""
    launch(4, WORKER, "curves", tmp_path, 6, *MESHES, prefork="torch")
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(4)]
    assert found.count(found[0]) == 4 and list(found[0]) == MESHES
    for mesh, losses in found[0].items():
        assert len(losses) == 6 and losses[-1] < losses[0]
        assert_close(losses, mesh)


def test_losses_while_the_mesh_changes(launch, binary, tmp_path, monkeypatch):
    """A job goes to another mesh and back, and loses a worker, with the losses of one worker. A
    mesh that deals the layers in chunks is refused.
    """
    monkeypatch.setattr(running_job, "Running", test_live.Training)
    way = ["pp=2(2/3;micro=2;ahead=3/1),dp=2", "dp=2,pp=2", "pp=4(1/1/1/2;micro=3)", "pp=2,dp=2"]
    with running_job.running(
        launch, binary, tmp_path / "end", 4, WORKER, way[0], 1 << 20, prefork="torch"
    ) as job:
        chunked = [binary, "reshape", job.name, "--mesh", "pp=1(chunks=5),dp=4"]
        done = subprocess.run(chunked, capture_output=True, text=True, timeout=running_job.HANG)
        assert done.returncode == 1 and "leave chunks out" in done.stderr, done.stderr
        for mesh in way[1:]:
            job.reshape(mesh)
        os.kill(job.workers()[1], signal.SIGKILL)
        job.read_until("STEP [0-9]+ on pp=2,dp=1 ")
        subprocess.run([binary, "stop", job.name], check=True, timeout=running_job.HANG)
        output = job.finish()
    steps = re.findall(r"STEP (\d+) on (\S+) loss (\S+)", output)
    assert [int(n) for n, _, _ in steps] == list(range(len(steps)))
    assert [m for m, _ in itertools.groupby(m for _, m, _ in steps)] == [*way, "pp=2,dp=1"]
    assert_close([float(loss) for _, _, loss in steps], "while the mesh changes")


def test_a_parked_chain_goes_on(launch, binary, tmp_path):
    """It goes on with the next sample, on the mesh that fewer workers can hold."""
    folder, mesh = tmp_path / "checkpoints", "pp=2(2/3;micro=2;ahead=3/1),dp=2"
    with running_job.running(
        launch, binary, tmp_path / "end", 4, WORKER, mesh, 1 << 20, folder, prefork="torch"
    ) as job:
        subprocess.run([binary, "park", job.name], check=True, timeout=running_job.HANG)
        output = job.finish()
    assert "END" not in output, output[-6000:]
    at = max(int(path.name[5:]) for path in folder.glob("step-*"))
    words = (mesh, at + 6, folder, tmp_path / "none")
    after = launch(2, WORKER, *words, prefork="torch")
    steps = re.findall(r"STEP (\d+) on (\S+) loss (\S+)", after)
    other = "pp=2(2/3;micro=2;ahead=3/1),dp=1"
    assert [(int(n), m) for n, m, _ in steps] == [(at + i, other) for i in range(6)], after
    wanted = itertools.islice(chain_torch.plain_losses(), at, at + 6)
    for (n, _, got), want in zip(steps, wanted):
        assert abs(float(got) - want) <= 1e-9 * want, f"step {n}: {got}, want {want}"


def test_alone():
    """Without the launcher a chain trains as a job of one, as the plain loop does."""
    trained = chain_torch.CHAIN.train(
        samples=chain_torch.SAMPLES,
        fetch=chain_torch.fetch,
        batch=chain_torch.BATCH,
        mesh="pp=1(5;micro=5),dp=1",
        seed=chain_torch.SEED,
        steps=10,
    )
    assert_close([step.loss for step in trained], "alone")


class Counting(torch.optim.SGD):
    """An optimizer that counts its steps in numbers, and has the count in what it does."""

    def step(self):
        """Make a step."""
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["made"] = state.get("made", 0) + 1
            state["part"] = state.get("part", 1.0) / 2
            p.data -= p.grad * (state["part"] + state["made"]) / 9


@pytest.mark.parametrize(
    "optimizer",
    [
        chain_torch.adam,
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
        lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.3),
        lambda p: torch.optim.NAdam(p, 0.01),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: Counting(p, 0.1),
    ],
    ids=["adamw", "sgd with dampening", "adagrad", "nadam", "rprop", "sgd", "numbers"],
)
def test_the_optimizer_goes_on(optimizer):
    """The state that a chain names is all that an optimizer needs to go on elsewhere, and the first
    steps are those of torch.
    """
    job, layers = shoal.join(), Layers(chain_torch.layers, optimizer, 1)
    program = Program(chain_torch.loss, optimizer, None, chain_torch.fetch)
    losses, moved, stage = [], {}, None
    for step, indices in zip(range(6), chain_torch.batches()):
        if step in (0, 2, 4):
            stage = Stage(layers, program, job.mesh("dp=1"))
            if step == 0:
                stage.initialize()
            else:
                stage.adopt(moved)
        losses.append(stage.gradients(indices).item())
        stage.update()
        assert {x["name"]: x["shape"] for x in layers.catalogue()} == {
            name: list(x.shape) for name, x in stage.tensors().items()
        }
        moved = {name: x.clone() for name, x in stage.tensors().items()}
    modules = nn.ModuleList(module for _, module in layers.initial_layers())
    plain = optimizer([p for p in modules.parameters() if p.requires_grad])
    for got, indices in zip(losses, chain_torch.batches()):
        x, targets = chain_torch.fetch(torch.as_tensor(indices))
        x = (x,)
        for module in modules:
            x = module(*x)
        value = chain_torch.loss(x, targets)
        plain.zero_grad()
        value.backward()
        plain.step()
        assert abs(got - value.item()) <= 1e-12


def test_parameters_have_no_memory_before_a_stage_gives_it():
    """Where a model has its layers made one at a time, no process has memory for all of them."""
    layers = Layers(chain_torch.layers, chain_torch.adam)
    assert all(p.is_meta for m in layers.modules for p in m.parameters())
    assert [float(m.weights.sum()) for m in layers.modules[1:4]] == [3.75] * 3
    assert len({id(p) for m in layers.modules for p in m.parameters()}) == len(layers.weights)


def shared():
    """Two layers with one parameter."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return [first, nn.ReLU(), second]


class Named(nn.Module):
    """A layer that gives a dict."""

    def forward(self, x):
        """What it gets, by name."""
        return {"x": x}


class Mean(nn.Module):
    """A layer with a buffer that follows its input."""

    def __init__(self):
        """With the buffer 0."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        """What it gets, less the mean of what it got before."""
        self.mean.mul_(0.9).add_(x.detach().mean() / 10)
        return x - self.mean


class Replaced(Mean):
    """A layer whose buffer becomes another one, from its second step on."""

    steps = 0

    def forward(self, x):
        """What it gets."""
        self.steps += 1
        if self.steps > 1:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x


def closure(parameters):
    """An optimizer that computes the loss several times in a step."""
    return torch.optim.LBFGS(parameters)


class Scheduled(torch.optim.SGD):
    """An optimizer that keeps something in its groups."""

    def step(self):
        """Count."""
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1


def sgd(parameters):
    """An optimizer that keeps nothing."""
    return torch.optim.SGD(parameters, 0.1)


@pytest.mark.parametrize(
    "make, optimizer, said",
    [
        (shared, sgd, r"layers\.2\.weight and layers\.0\.weight are one parameter"),
        (lambda: [nn.Linear(4, 4)] * 2, sgd, r"layers\.1\.weight and layers\.0\.weight are one"),
        (
            lambda: [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))],
            sgd,
            r"layers\.0\.1 is a BatchNorm1d.* Use LayerNorm",
        ),
        (lambda: [nn.LazyLinear(4)], sgd, "LazyLinear has: give it the shape"),
        (lambda: [nn.Linear(4, 4), Named()], sgd, r"layers\.1 \(Named\) gave a dict"),
        (lambda: [nn.Linear(4, 4), Mean()], sgd, r"layers\.1\.mean is a buffer that changes"),
        (lambda: [nn.Linear(4, 4), Replaced()], sgd, r"layers\.1\.mean is a buffer that changes"),
        (lambda: [nn.Linear(4, 4)], closure, "LBFGS looks at the loss more than once a step"),
        (lambda: [nn.Linear(4, 4)], lambda p: Scheduled(p, 0.1), "Scheduled changes 'k'"),
        (lambda: [nn.Linear(4, 4)], lambda p: None, r"optimizer\(parameters\)=None"),
        (lambda: [], sgd, "gave no layers"),
        (lambda: nn.Linear(4, 4), sgd, "a list of torch.nn.Module"),
        (lambda: [nn.Linear(4, 4), F], sgd, "layer 1=.*: a torch.nn.Module"),
    ],
)
def test_refusals(make, optimizer, said):
    """What a chain cannot train is refused, with the module and what to do."""
    with pytest.raises((shoal.ShoalError, TypeError), match=said):
        make_step(make, optimizer, lambda i: (torch.ones(len(i), 4), None), lambda y, _: y.mean())


def test_wrong_functions_are_named():
    """A model is no function that gives modules, though it can be called, and what a schedule gives
    is a number.
    """
    optimizer = sgd
    with pytest.raises(TypeError, match="layers=Sequential.*: a function that gives modules"):
        shoal.torch.chain(nn.Sequential(nn.Linear(4, 1)), loss=F.mse_loss, optimizer=optimizer)
    chain = shoal.torch.chain(
        lambda: [nn.Linear(4, 1)], loss=F.mse_loss, optimizer=optimizer, schedule=lambda n: "x"
    )
    data = torch.ones(4, 4), torch.ones(4, 1)
    with pytest.raises(TypeError, match=r"schedule\(0\)='x': a number"):
        list(chain.train(samples=4, fetch=lambda indices: data, batch=4, steps=1))


def make_step(make, optimizer, fetch, loss):
    """Make two steps of a chain in this process."""
    layers = Layers(make, optimizer)
    layers.catalogue()
    program = Program(loss, optimizer, None, fetch)
    stage = Stage(layers, program, shoal.join().mesh("dp=1"))
    stage.initialize()
    for _ in range(2):
        stage.gradients([0, 1, 2, 3])
        stage.update()


def test_a_layer_works_in_place_on_what_another_stage_gives():
    """The first layer of a stage may change what comes in: the gradient is that without a cut."""
    program = Program(lambda y, _: y.mean(), sgd, None, lambda i: (torch.ones(len(i), 4), None))
    stage = Stage(Layers(lambda: [nn.ReLU(inplace=True)], sgd), program, shoal.join().mesh("dp=1"))
    given = torch.tensor([[-1.0, 2.0]], requires_grad=True)
    stage._first, stage._before = False, mock.Mock(**{"receive.return_value": [given]})
    stage.gradients([0])
    assert given.tolist() == [[-1.0, 2.0]] and given.grad.tolist() == [[0.0, 0.5]]


@pytest.mark.parametrize(
    "fetch, loss, said",
    [
        (lambda i: torch.ones(len(i), 4), torch.mean, r"fetch\(indices\)=.*: inputs of the first"),
        (lambda i: ([1.0], 0), torch.mean, r"fetch\(indices\)\[0\] gave a float"),
        (lambda i: (torch.ones(4), 0), lambda y, _: y, r"loss\(outputs, targets\)=.*one element"),
    ],
)
def test_what_the_program_gives(fetch, loss, said):
    """Functions of the program that give something else are named."""
    with pytest.raises(TypeError, match=said):
        make_step(lambda: [nn.Linear(4, 4)], sgd, fetch, loss)


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA device: torch.cuda.is_available() is False here",
)
@pytest.mark.parametrize(
    "make, given, targets, said",
    [
        (lambda: [nn.Linear(4, 4).cuda()], "cpu", "cpu", "a parameter of a layer is on cuda:0"),
        (lambda: [nn.Linear(4, 4)], "cuda", "cpu", "what fetch gave is on cuda:0"),
        (lambda: [nn.Linear(4, 4)], "cpu", "cuda", "what fetch gave is on cuda:0"),
        (lambda: [with_buffer("cuda")], "cpu", "cpu", "layers.0.shift is on cuda:0"),
    ],
)
def test_tensors_on_a_gpu(make, given, targets, said):
    """What lies on a GPU is refused, with what trains there."""

    def fetch(i):
        return torch.ones(len(i), 4, device=given), torch.ones(len(i), 4, device=targets)

    with pytest.raises(shoal.ShoalError, match=f"{said}: a chain trains with tensors on the CPU"):
        make_step(make, sgd, fetch, F.mse_loss)


def with_buffer(device):
    """A layer with a buffer on a device."""
    layer = nn.Linear(4, 4)
    layer.register_buffer("shift", torch.ones(4, device=device))
    return layer


PLAN = {"shoal": "deployment/1", "mesh": "pp=2(8/6;micro=4;ahead=3/1)"}


@pytest.mark.parametrize(
    "given, said",
    [
        ("pp=2(8/6)", None),
        (PLAN, None),
        ({**PLAN, "stages": [{"layers": 8}, {"layers": 6}]}, None),
        ({**PLAN, "mesh": "pp=2", "stages": [{"layers": 8}, {"layers": 7}]}, "of 15 layers.* 14"),
        ({**PLAN, "mesh": "pp=2(8/7)"}, "8/7 layers, 15 in all, and the model has 14"),
        ("pp=2(9/6)", "9/6 layers, 15 in all, and the model has 14"),
        ("dp=2,tp=2", "the axis tp"),
        ("pp=2(chunks=2)", "in chunks"),
        ("pp=2(8/6", "does not end in one closing bracket"),
        ({**PLAN, "shoal": "deployment/2"}, "another version"),
        ({"shoal": "deployment/1"}, "a plan that no job trains by: make one"),
        (
            {"shoal": "deployment/1", "mesh": "", "runs": {"why_not": "its stages differ"}},
            "a plan that no job trains by, because its stages differ: make one",
        ),
        ([], "is no deployment"),
        ("none.json", "no deployment can be read there: No such file"),
        (3, "mesh=3"),
    ],
)
def test_meshes(tmp_path, given, said):
    """A mesh is a text or a plan, for this model."""
    mesh = given
    if isinstance(given, (dict, list)):
        mesh = str(tmp_path / "plan.json")
        pathlib.Path(mesh).write_text(json.dumps(given))
    with pytest.raises((ValueError, TypeError), match=said) if said else contextlib.nullcontext():
        assert read_mesh(mesh, 14) == (given if isinstance(given, str) else given["mesh"])
