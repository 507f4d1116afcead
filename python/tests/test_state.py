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
    """Runs `shoal state` and returns what it prints."""

    def run(*arguments, code=0):
        done = subprocess.run([binary, "state", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == code, done.stdout
        return done.stdout

    return run


def test_from_mesh_to_mesh(launch, state, tmp_path):
    saved, flat, rows = tmp_path / "saved", tmp_path / "flat", tmp_path / "rows.yaml"
    assert launch(4, WORKER, "pp=2,tp=2", saved).count("EQUAL") == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved"], "nothing else stays behind"
    assert "is whole" in state("check", saved)
    state("verify", saved)
    # Resharded to another layout by the engine, where the fingerprints of the seal are compared, and back into memory on other meshes.
    rows.write_text(ROWS)
    state("reshard", saved, flat, "--layout", rows, "--seal")
    state("diff", saved, flat)
    assert re.findall(r"EQUAL (\d+)", launch(3, WORKER, "tp=3", saved, flat)) == ["10"] * 6
    assert sorted(re.findall(r"EQUAL (\d+)", launch(4, WORKER, "pp=4", flat))) == ["6", "6", "6", "7"]


def test_a_job_of_one(state, tmp_path):
    wide = {"a": numpy.arange(6.0).reshape(2, 3), "b": {"c": numpy.array(3)}}
    with shoal.join():
        shoal.state.save(wide, tmp_path / "saved")
        empty = {"a": numpy.zeros((2, 3)), "b": {"c": numpy.array(0)}}
        shoal.state.load(empty, tmp_path / "saved")
        assert (empty["a"] == wide["a"]).all() and empty["b"]["c"] == 3
        state("verify", tmp_path / "saved")
        for broken, why in [
            ({"a": numpy.zeros((3, 2))}, r"tensor a is f64 \[2, 3\] in .*, and f64 \[3, 2\] in this program"),
            ({"a": numpy.zeros((2, 3), "float32")}, "f64"),
            ({"d": numpy.zeros(1)}, "tensor d is not in"),
            ({"a": 3.0}, "a is a float, no array"),
        ]:
            with pytest.raises(shoal.ShoalError, match=why):
                shoal.state.load(broken, tmp_path / "saved")
        with pytest.raises(shoal.ShoalError, match="is there already"):
            shoal.state.save(wide, tmp_path / "saved")
        with pytest.raises(shoal.ShoalError, match="a mesh dp=2 for a job of 1"):
            shoal.state.save(wide, tmp_path / "other", mesh="dp=2")
        with pytest.raises(shoal.ShoalError, match="no placement"):
            shoal.state.save(wide, tmp_path / "other", layout={"rules": [{"match": "**", "place": "dp=shred"}]})
        assert [p.name for p in tmp_path.iterdir()] == ["saved"]


def test_damage_is_found(tmp_path):
    with shoal.join():
        shoal.state.save({"a": numpy.arange(100)}, tmp_path / "saved")
        (file,) = (tmp_path / "saved").glob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-9] ^= 1
        file.write_bytes(data)
        with pytest.raises(shoal.ShoalError, match="rank-00000.safetensors"):
            shoal.state.load({"a": numpy.zeros(100, "int64")}, tmp_path / "saved")


def test_what_a_killed_save_left_is_removed(tmp_path):
    (tmp_path / "saved.partial").mkdir()
    (tmp_path / "saved.partial" / "rank-00007.safetensors").write_bytes(b"half")
    with shoal.join():
        shoal.state.save({"a": numpy.arange(3)}, tmp_path / "saved")
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == ["rank-00000.safetensors", "shoal-layout.json", "shoal-manifest.json"]


def test_dtensors(launch, state, tmp_path):
    pytest.importorskip("torch.distributed.tensor")
    assert launch(4, WORKER.with_name("state_dtensor.py"), tmp_path / "saved").count("EQUAL") == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved", "saved-mixed"]
    state("verify", tmp_path / "saved")
    assert re.search(r"^model\.both +f64 +\[12,6\] +576 +4$", state("ls", tmp_path / "saved"), re.M)
