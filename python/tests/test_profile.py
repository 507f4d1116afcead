"""A chain is measured layer by layer, and what is wrong with a command line is named."""

import collections
import json
import os

import pytest

torch = pytest.importorskip("torch")

import chain_torch
import shoal.torch
from shoal.torch import profile
from shoal.torch.chain.measure import _move_to
from torch import nn

MODEL = """
import shoal.torch, torch
from torch import nn

def layers():
    yield nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    yield nn.Identity()
    yield nn.Linear(3, 2)

def fetch(indices):
    return torch.ones(len(indices), 4), torch.zeros(len(indices), 2)

def mistaken(indices):
    return torch.ones(len(indices), 5), None

def stopped(indices):
    raise KeyboardInterrupt

chain = shoal.torch.chain(
    layers, loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.Adam(p, 0.1)
)
"""


@pytest.fixture(autouse=True)
def one_thread():
    """Has torch compute with one thread meanwhile, and with float32."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A folder with the program MODEL in model.py, which is the current one."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(profile.sys.modules, "model", raising=False)
    monkeypatch.setattr(profile.sys, "path", list(profile.sys.path))
    return tmp_path


def test_what_is_written(program, capsys):
    """The sizes of a model are those that its layers have, and its times are times."""
    words = ["model.py:chain", "--sample", "model.py:fetch", "--micro", "5,2", "-o", "m.json"]
    assert profile.main([*words, "--threads", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("3 layers, 2 sizes of micro-batches: forward, backward by input")
    assert said.err.splitlines()[0].startswith("micro 2: ")
    model = json.loads((program / "m.json").read_text())
    assert [path.name for path in program.glob("m.json*")] == ["m.json"]
    layers = [(x["id"], x["kind"], x["params"], x["state"], x["out"]) for x in model["layers"]]
    assert layers == [  # Adam has two moments of each parameter, and a count of steps
        ("layers.0", "Sequential", 4 * 15, 4 * 15 * 4 + 2 * 4, 12),
        ("layers.1", "Identity", 0, 0, 12),
        ("layers.2", "Linear", 4 * 8, 4 * 8 * 4 + 2 * 4, 0),
    ]
    assert [(p["device"], p["micro"], p["threads"]) for p in model["points"]] == [
        ("cpu", 2, 1),
        ("cpu", 5, 1),
    ]
    for point in model["points"]:
        n, costs = point["micro"], point["layers"]
        # the input of a product, what tanh gave, what the loss compares
        assert [costs[f"layers.{i}"]["kept"] for i in range(3)] == [
            4 * n * (4 + 3),
            0,
            4 * n * (3 + 2 + 2),
        ]
        for name, cost in costs.items():
            assert 0 <= cost["by_weights"] <= cost["backward"] and cost["forward"] > 0
            assert (cost["update"] > 0) == (name != "layers.1")
        # no gradient goes out of the first layer, and the second has no weights
        assert costs["layers.0"]["by_weights"] == costs["layers.0"]["backward"]
        assert costs["layers.1"]["by_weights"] == 0


def test_tuples_of_several_types():
    """Layers that pass on several tensors, some without a gradient, are measured."""
    model = profile.profile(
        chain_torch.CHAIN,
        chain_torch.fetch,
        [3],
        device=torch.device("cpu"),
        rounds=5,
        name="x",
        kind="cpu",
        report=lambda line: None,
    )
    width = chain_torch.CONTEXT * (8 * chain_torch.WIDTH + 1)
    assert [layer["out"] for layer in model["layers"]] == [*[width] * 4, 0]
    # The bias of the head is not trained, and has no gradient and no moments. Adam counts its
    # steps in the type that torch computes in.
    head, bias = 8 * chain_torch.WIDTH * chain_torch.VOCABULARY, 8 * chain_torch.VOCABULARY
    assert model["layers"][-1]["params"] == head
    assert model["layers"][-1]["state"] == 4 * head + bias + 8


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["model.py"], 2, "the chain 'model.py': give a file or a module, a colon, and the name"),
        (["none.py:chain"], 2, "there is no file none.py"),
        (["no_such_module:chain"], 2, "No module named 'no_such_module'"),
        (["model.py:chains"], 2, "model.py has no chains"),
        (["model:fetch"], 2, "model:fetch is a function, and no chain"),
        (["model:chain", "--sample", "model:__name__"], 2, "is a str, and no function"),
        (["model:chain", "--micro", "2,0"], 2, "'2,0': give whole numbers from 1 on"),
        (["model:chain", "--micro", ""], 2, "'': give whole numbers from 1 on"),
        (["model:chain", "--rounds", "3"], 2, "--rounds 3: quartiles need at least 5"),
        (["model:chain", "--threads", "0"], 2, "--threads 0: from 1 to 1024"),
        (["model:chain", "--threads", "9999999"], 2, "--threads 9999999: from 1 to 1024"),
        (["model:chain", "--device", "xpux"], 2, "--device xpux: "),
        (["model:chain", "-o", "none/m.json"], 2, "there is no folder none: make it first"),
        (["none.py:chain", "-o", "none/m.json"], 2, "there is no folder none: make it first"),
        (["model:chain", "-o", "."], 2, "-o .: it is a folder; name a file in it"),
        (["model:chain", "-o", ""], 2, "-o : it is empty; name a file"),
        (["model.py:chain", "-o", "./model.py"], 2, "-o ./model.py: it is the file of model.py:ch"),
        (["model:chain", "-o", "model.py"], 2, "-o model.py: it is the file of model:chain; name"),
        (["model:chain", "--device", "meta"], 2, "--device meta: nothing is computed there; give"),
        (["model:chain", "--sample", "model:stopped"], 130, "SIGINT: nothing is written"),
        (["model:chain", "-o", "pipe"], 2, "-o pipe: it is no regular file; name another one"),
        (["model:chain", "-o", "link"], 2, "-o link: it is no regular file; name another one"),
        (["model:chain", "--device-name", "a 100"], 2, "'a 100' names no kind of device"),
        (["model:chain", "--device-name", ""], 2, "'' names no kind of device"),
        (["model:chain", "--sample", "model:mistaken"], 1, "layers.0 (Sequential): RuntimeError"),
    ],
)
def test_refusals(program, capsys, words, code, said):
    """What is wrong is named, and nothing is written."""
    os.mkfifo(program / "pipe")
    (program / "link").symlink_to("model.py")
    chain, *options = words
    every = [chain, "--sample", "model:fetch", "--micro", "1", "--device", "cpu", "-o", "m.json"]
    try:
        found = profile.main([*every, *options])
    except SystemExit as end:  # argparse
        found = end.code
    assert found == code and said in capsys.readouterr().err
    assert not list(program.glob("m.json*")) and (program / "model.py").read_text() == MODEL


def test_help_has_an_example(capsys):
    """--help shows a command line that is one."""
    with pytest.raises(SystemExit):
        profile.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("gpt.py:chain --sample gpt.py:fetch --micro 4,8 -o gpt.model.json"), said


def test_names_of_devices(monkeypatch):
    """A GPU has the name that agents give its host."""
    assert profile.kind_of(torch.device("cpu")) == "cpu"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 (80 GB) HBM3")
    assert profile.kind_of(torch.device("cuda")) == "NVIDIA-H100-80-GB-HBM3"


def test_layers_that_work_in_place():
    """A layer that changes what it gets is measured, as it is trained: it gets the same in each
    round, and the sample stays as it is.
    """
    seen = []

    class Halved(nn.Module):
        """Halves its input in place, and keeps in `seen` what it was."""

        def forward(self, x):
            seen.append(x.tolist())
            return x.div_(2)

    sample = torch.ones(1, 2)
    chain = shoal.torch.chain(
        lambda: [Halved(), nn.Linear(2, 2), nn.ReLU(inplace=True)],
        loss=lambda y, _: y.mean(),
        optimizer=lambda p: torch.optim.SGD(p, 0.1),
    )
    model = profile.profile(
        chain,
        lambda _: (sample, None),
        [1],
        device=torch.device("cpu"),
        rounds=5,
        name="x",
        kind="cpu",
        report=lambda line: None,
    )
    assert sample.tolist() == [[1.0, 1.0]] and all(x == [[1.0, 1.0]] for x in seen)
    costs = model["points"][0]["layers"]
    assert costs["layers.1"]["backward"] > 0 and costs["layers.2"]["backward"] > 0
    assert costs["layers.2"]["kept"] == 4 * 2  # what it gave


def test_targets_of_named_tuples():
    """What the loss is compared with may be nested, also in a named tuple."""
    named = collections.namedtuple("named", "words lengths")
    value = {"all": [named(torch.ones(2), 3)]}
    moved = _move_to(value, torch.device("cpu"))
    assert type(moved["all"][0]) is named and moved["all"][0].lengths == 3
