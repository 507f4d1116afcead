"""State saved from Python is what `shoal state` takes, from any mesh to any other."""

import pathlib
import re
import subprocess

import numpy
import pytest

import shoal

WORKER = pathlib.Path(__file__).with_name("state_numpy.py")
ROWS = """
shoal: layout/1
mesh: dp=3
rules:
- {match: "layers.**", place: "dp=flat"}
- {match: count}
- {match: "**", place: "dp=shard(0,ceil)"}
"""


@pytest.fixture
def state(binary):
    """Returns state(*arguments): runs `shoal state`, expects exit code `code`, returns what it
    prints.
    """

    def run(*arguments, code=0):
        """What `state` says. Fails with another exit code."""
        done = subprocess.run(
            [binary, "state", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    return run


def test_from_mesh_to_mesh(launch, state, tmp_path):
    """A state that is saved on one mesh is loaded on others, also after `shoal state` has resharded
    it.
    """
    saved, flat, rows = tmp_path / "saved", tmp_path / "flat", tmp_path / "rows.yaml"
    assert launch(4, WORKER, "pp=2,tp=2", saved).count("EQUAL") == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved"], "nothing else stays behind"
    assert "is whole" in state("check", saved)
    state("verify", saved)
    # Resharded to another layout by the engine, where the fingerprints of the seal are compared,
    # and back into memory on other meshes.
    rows.write_text(ROWS)
    state("reshard", saved, flat, "--layout", rows, "--seal")
    state("diff", saved, flat)
    assert re.findall(r"EQUAL (\d+)", launch(3, WORKER, "tp=3", saved, flat)) == ["10"] * 6
    assert sorted(re.findall(r"EQUAL (\d+)", launch(4, WORKER, "pp=4", flat))) == [
        "6",
        "6",
        "6",
        "7",
    ]


def test_a_job_of_one(state, tmp_path):
    """A job of one saves and loads, and what does not fit is refused with its reason."""
    wide = {"a": numpy.arange(6.0).reshape(2, 3), "b": {"c": numpy.array(3)}}
    wide["best"] = numpy.float32(0.5)
    with shoal.join():
        shoal.state.save(wide, tmp_path / "saved")
        empty = {"a": numpy.zeros((2, 3)), "b": {"c": numpy.array(0)}, "best": numpy.float32(0)}
        shoal.state.load(empty, tmp_path / "saved")
        assert (empty["a"] == wide["a"]).all() and empty["b"]["c"] == 3
        assert type(empty["best"]) is numpy.float32 and empty["best"] == 0.5
        state("verify", tmp_path / "saved")
        for broken, why in [
            (
                {"a": numpy.zeros((3, 2))},
                r"tensor a is f64 \[2, 3\] in .*, and f64 \[3, 2\] in this program",
            ),
            ({"a": numpy.zeros((2, 3), "float32")}, "f64"),
            ({"d": numpy.zeros(1)}, "tensor d is not in"),
            ({"a": 3.0}, "value a is not in"),
            ({"a": object()}, "a is a object: a state has arrays, and numbers"),
        ]:
            with pytest.raises(shoal.ShoalError, match=why):
                shoal.state.load(broken, tmp_path / "saved")
        with pytest.raises(shoal.ShoalError, match="is there already"):
            shoal.state.save(wide, tmp_path / "saved")
        for twice in ({"b.c": wide["a"], **wide}, {"b.c": 3, **wide}, {**wide, "1": 2, 1: 3}):
            with pytest.raises(shoal.ShoalError, match="has (b.c|1) twice, since keys are joined"):
                shoal.state.save(twice, tmp_path / "other")
        for layout in (7, "rules: []", "[]"):
            with pytest.raises(shoal.ShoalError, match="layout=.*: a spec of docs/formats/layout"):
                shoal.state.save(wide, tmp_path / "other", layout=layout)
        with pytest.raises(shoal.ShoalError, match="catalogue=3: a list of tensors as"):
            shoal.state.save(wide, tmp_path / "other", catalogue=3)
        with pytest.raises(TypeError, match="state=None: a mapping of names to arrays"):
            shoal.state.save(None, tmp_path / "other")
        listed = [{"name": "a", "dtype": "f64", "shape": (numpy.int64(2), 3)}]
        with pytest.raises(shoal.ShoalError, match="tensor b.c is on this worker, and by the lay"):
            shoal.state.save(wide, tmp_path / "other", catalogue=listed)
        with pytest.raises(shoal.ShoalError, match="a mesh dp=2 for a job of 1"):
            shoal.state.save(wide, tmp_path / "other", mesh="dp=2")
        with pytest.raises(shoal.ShoalError, match="no placement"):
            shoal.state.save(
                wide, tmp_path / "other", layout={"rules": [{"match": "**", "place": "dp=shred"}]}
            )
        assert [p.name for p in tmp_path.iterdir()] == ["saved"]


def test_workers_that_contradict_each_other(launch, tmp_path):
    """Arrays of other shapes, and one that a worker does not have, are named with what would do."""
    program = """
import sys, numpy, shoal, shoal.state
job = shoal.join()
for state in ({"a": numpy.zeros(3 + job.rank)}, {f"a{job.rank}": numpy.zeros(3)}):
    try:
        shoal.state.save(state, sys.argv[1])
    except shoal.ShoalError as e:
        print("SAID", e)
"""
    output = launch(2, program, tmp_path / "saved")
    assert output.count("tensor a is f64 [3] on one worker and f64 [4] on another: an array") == 2
    assert output.count("not have it: without a rule for it all workers have it") == 2, output
    assert not list(tmp_path.iterdir())


def test_one_folder_of_all_workers(launch, tmp_path):
    """Workers that save to different folders all get an error with both; one folder may have
    several paths.
    """
    program = """
import sys, numpy, shoal, shoal.state
job = shoal.join()
for folder in ("here", "link"):
    try:
        shoal.state.save({"a": numpy.zeros(3)}, f"{sys.argv[1]}/{(folder, 'there')[job.rank]}/a")
    except shoal.ShoalError as e:
        print("SAID", e)
    job.barrier()
"""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    output = launch(2, program, tmp_path)
    assert output.count("SAID") == 2, output
    said = f"rank 1: this worker saves to {tmp_path}/there/a, and rank 0 to {tmp_path}/here/a: "
    assert output.count(said) == 2, output
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["a"]
    assert not list((tmp_path / "here").iterdir())


def test_what_is_no_array(state, tmp_path):
    """Values are saved and loaded with their types; what differs or is missing is named."""
    moments = numpy.arange(4.0)

    def wide(first):
        """A state with every kind of value: the one to save with `first`, else one of the same
        form and types with other values, to load into.
        """
        group = {
            "lr": 0.5,
            "betas": (0.9, 1.0),
            "params": [0, 1],
            "fused": None,
            "kind": "all",
            "turns": 2**70,
            "back": -129,
            "limit": float("inf"),
            "on": True,
            "losses": [0.5, float("inf"), 1.0],
            "spans": [(1, 2), (2**70, 4)],
        }
        if not first:
            group = {
                "lr": 1.0,
                "betas": (0.0, 0.0),
                "params": [],
                "fused": None,
                "kind": "",
                "turns": 0,
                "back": 0,
                "limit": 0.0,
                "on": False,
                "losses": [2.0],
                "spans": [(0, 0)],
            }
        state = {0: {"exp_avg": moments if first else numpy.zeros(4)}}
        return {
            "optimizer": {"state": state, "param_groups": [group], "none": {}},
            "step": 7 if first else 0,
            "raw": b"\0\1" if first else b"",
            "buffer": bytearray(b"\2" if first else b""),
        }

    with shoal.join():
        saved = tmp_path / "saved"
        shoal.state.save(wide(True), saved)
        assert "optimizer.param_groups.0.lr" in state("ls", "--values", saved)
        state("verify", saved)
        state("convert", saved, tmp_path / "all.pt", "--format", "pt")
        for path in [saved, tmp_path / "all.pt"]:
            other = wide(False)
            shoal.state.load(other, path)
            assert repr(other) == repr(wide(True)), "values, and their types"
        for broken, why in [
            (
                {"optimizer": {"state": {}}},
                (
                    "optimizer.state is empty here, and not in .*: an optimizer has its state"
                    " after its first step"
                ),
            ),
            (
                {"optimizer": {"param_groups": ({"lr": 1.0},)}, "pair": ({"step": 1},)},
                "value pair.0.step is not in",
            ),
            ({"s3": 1}, "value s3 is not in"),
        ]:
            with pytest.raises(shoal.ShoalError, match=why):
                shoal.state.load(broken, saved)
        for bucket in ("s3://models/x", pathlib.Path("s3://models/x")):
            with pytest.raises(
                shoal.ShoalError, match="s3:/+models/x: shoal.state has folders and files"
            ):
                shoal.state.save({"a": moments}, bucket)
        with pytest.raises(ValueError, match="step is 2 on one worker and 1 on another"):
            shoal._checkpoint.values.merge_plans(
                [{"step": 1}, {"step": 1, "rank": {"tuple": [0]}}, {"step": 2}]
            )


def test_an_optimizer(tmp_path):
    """The state of an optimizer is saved and loaded."""
    torch = pytest.importorskip("torch")

    def trained(steps):
        """The states of a model and its optimizer after so many steps."""
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 / steps)
        for _ in range(steps):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    with shoal.join():
        before, after = trained(3), trained(1)
        shoal.state.save(before, tmp_path / "saved")
        shoal.state.load(after, tmp_path / "saved")
        assert repr(after) == repr(before)


def test_damage_is_found(tmp_path):
    """A damaged checkpoint is not loaded."""
    with shoal.join():
        shoal.state.save({"a": numpy.arange(100)}, tmp_path / "saved")
        (file,) = (tmp_path / "saved").glob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-9] ^= 1
        file.write_bytes(data)
        with pytest.raises(shoal.ShoalError, match="rank-00000.safetensors"):
            shoal.state.load({"a": numpy.zeros(100, "int64")}, tmp_path / "saved")


def test_what_a_killed_save_left_is_removed(tmp_path):
    """A save removes the folder of one that was killed."""
    (tmp_path / "saved.partial").mkdir()
    (tmp_path / "saved.partial" / "rank-00007.safetensors").write_bytes(b"half")
    with shoal.join():
        shoal.state.save({"a": numpy.arange(3)}, tmp_path / "saved")
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == [
        "rank-00000.safetensors",
        "shoal-layout.json",
        "shoal-manifest.json",
    ]


def test_what_no_save_made_stays(tmp_path):
    """A folder that somebody else has made where a save writes stays as it is."""
    (tmp_path / "saved.partial").mkdir()
    (tmp_path / "saved.partial" / "journal").write_bytes(b"of a move")
    (tmp_path / "other.partial").write_bytes(b"mine")
    with shoal.join():
        with pytest.raises(shoal.ShoalError, match="journal is there, and no earlier save"):
            shoal.state.save({"a": numpy.arange(3)}, tmp_path / "saved")
        with pytest.raises(shoal.ShoalError, match="other.partial"):
            shoal.state.save({"a": numpy.arange(3)}, tmp_path / "other")
    assert (tmp_path / "saved.partial" / "journal").read_bytes() == b"of a move"
    assert (tmp_path / "other.partial").read_bytes() == b"mine"


def test_tensors_that_no_file_can_hold(tmp_path):
    """A tensor of torch that has no bytes of its own is named."""
    torch = pytest.importorskip("torch")
    with shoal.join():
        for tensor, kind in [
            (torch.eye(2).to_sparse(), "of layout torch.sparse_coo"),
            (torch.ones(2, device="meta"), "on the device meta"),
        ]:
            with pytest.raises(shoal.ShoalError, match=f"net.w is a tensor {kind}, which can go"):
                shoal.state.save({"net": {"w": tensor}}, tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_names_of_any_letters(tmp_path):
    """A name keeps the letters that are no printable ASCII; a folder can be named by bytes."""
    names = ["größe", "a\nb", 'a"b', "a_b"]
    with shoal.join():
        shoal.state.save(
            {name: numpy.full(2, i) for i, name in enumerate(names)}, bytes(tmp_path / "saved")
        )
        found = {name: numpy.zeros(2, int) for name in names}
        shoal.state.load(found, tmp_path / "saved")
    assert {name: int(array[1]) for name, array in found.items()} == {
        name: i for i, name in enumerate(names)
    }


def test_dtensors(launch, state, tmp_path):
    """DTensors are saved from a mesh and loaded on others."""
    pytest.importorskip("torch.distributed.tensor")
    program = WORKER.with_name("state_dtensor.py")
    assert launch(4, program, tmp_path / "saved", prefork="torch").count("EQUAL") == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved", "saved-mixed"]
    state("verify", tmp_path / "saved")
    assert re.search(r"^model\.both +f64 +\[12,6\] +576 +4$", state("ls", tmp_path / "saved"), re.M)
