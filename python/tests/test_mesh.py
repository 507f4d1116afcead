"""Ranks on named axes: who is where, and who is on a line with whom."""

import pathlib
import re

import pytest

import shoal
from shoal._runtime.axes import parse_axes


@pytest.mark.parametrize(
    "text, why",
    [
        ("dp", "not of the form"),
        ("dp=0", "between 1 and 262144"),
        ("dp=-1", "not of the form"),
        ("Dp=1", "small letters"),
        ("dp=1,", "not of the form"),
        ("dp=1,tp=1,dp=1", "dp comes twice"),
        ("dp=1.0", "not of the form"),
        ("dp=2", "2 ranks for a job of 1"),
        ("dp=2,tp=3", "6 ranks for a job of 1"),
    ],
)
def test_what_is_no_mesh_of_this_job(text, why):
    """A text that is no mesh, or of another number of ranks, is refused."""
    with shoal.join() as job, pytest.raises(ValueError, match=why):
        job.mesh(text)


@pytest.mark.parametrize(
    "text, axes", [("", {}), ("dp=1", {"dp": 1}), (" tp = 1 , p_2=1", {"tp": 1, "p_2": 1})]
)
def test_a_job_of_one(text, axes):
    """Every axis of a job of one is a group of this rank."""
    with shoal.join() as job:
        mesh = job.mesh(text)
        assert mesh.axes == axes and mesh.coordinate == dict.fromkeys(axes, 0)
        assert str(mesh) == ",".join(f"{axis}=1" for axis in axes)
        for axis in [*axes, "another"]:
            assert mesh[axis] is mesh[axis] and (
                mesh[axis].rank,
                mesh[axis].size,
                mesh[axis].ranks,
            ) == (0, 1, (0,))
            assert mesh[axis].allreduce(bytearray(b"x")) == b"x"


MESHES = pathlib.Path(__file__).parents[2] / "state/layout/testdata/meshes.txt"


def test_texts_that_go_reads_too():
    """The texts of the table that Go's tests read: the same normal form, or the same words."""
    lines = [x for x in MESHES.read_text().splitlines() if x and not x.startswith("#")]
    for line in lines:
        text, good, want = line.partition(" => ")
        if good:
            assert ",".join(map(str, parse_axes(text))) == want, text
        else:
            text, _, want = line.partition(" ! ")
            with pytest.raises(ValueError, match=re.escape(want)):
                parse_axes(text)
    assert len(lines) > 25


def test_random_texts_that_go_reads_too():
    """What Go makes of random texts: the same normal form, or the same words, whole."""
    random = MESHES.with_name("meshes_random.txt").read_text().splitlines()[1:]
    for line in random:
        text, good, want = line.partition(" => ")
        if not good:
            text, _, want = line.partition(" ! ")
        try:
            said = ",".join(map(str, parse_axes(text)))
        except ValueError as e:
            assert not good, line
            said = str(e)[len(f"mesh {text!r}: ") :]
        assert said == want, text
    assert len(random) == 400


def test_what_a_mesh_says_of_a_rank():
    """Parts of things along an axis, by its shares and without, and what is for the program."""
    with shoal.join() as job:
        mesh = job.mesh("dp=1(7),pp=1(micro=4;ahead=3;chunks=2)")
        assert (mesh.micro, mesh.ahead, mesh.chunks("pp"), mesh.chunks("dp")) == (4, 3, 2, 1)
        for count, kind in ((-3, ValueError), (2.5, TypeError), ("9", TypeError)):
            with pytest.raises(kind, match="count=.*: how many things are dealt, an integer from"):
                mesh.part("dp", count)
        assert mesh.part("dp", 10) == mesh.part("pp", 10) == mesh.part("tp", 10) == range(10)
        plain = job.mesh("pp=1")
        assert (plain.micro, plain.ahead) == (None, None)


PARTS = """
import sys, shoal
job = shoal.join()
mesh = job.mesh(sys.argv[1])
print("part", job.rank, mesh.part("pp", int(sys.argv[2])), mesh.ahead)
"""


@pytest.mark.parametrize(
    "text, count, parts",
    [
        ("pp=3", 8, ["range(0, 3) None", "range(3, 6) None", "range(6, 8) None"]),
        ("pp=3(5/0/3)", 8, ["range(0, 5) None", "range(5, 5) None", "range(5, 8) None"]),
        ("pp=3(3/1/4;ahead=3/2/1)", 16, ["range(0, 6) 3", "range(6, 8) 2", "range(8, 16) 1"]),
    ],
)
def test_parts(launch, text, count, parts):
    """Each rank has its share of the things in a row, and all of them together have each once."""
    said = sorted(re.findall(r"part (.*)", launch(3, PARTS, text, count)))
    assert said == [f"{rank} {part}" for rank, part in enumerate(parts)]


# What stands on the axes is computed here in another way than by strides: by counting up, the last
# digit the fastest.
GRID = """
import itertools, numpy, sys, shoal
job = shoal.join()
for text in sys.argv[1:]:
    mesh = job.mesh(text)
    points = list(itertools.product(*(range(n) for n in mesh.axes.values())))
    here = points[job.rank]
    assert tuple(mesh.coordinate.values()) == here, mesh
    for i, axis in enumerate(mesh.axes):
        line = [r for r, p in enumerate(points) if p[:i] + p[i + 1:] == here[:i] + here[i + 1:]]
        group = mesh[axis]
        found, want = (group.ranks, group.size, group.rank), (tuple(line), mesh.axes[axis], here[i])
        assert found == want, (mesh, axis)
        assert group.allgather(numpy.array([job.rank])).tolist() == line
print(len(sys.argv) - 1, "meshes")
"""


@pytest.mark.parametrize(
    "n, texts",
    [
        (4, ["dp=2,tp=2", "tp=4", "pp=2,dp=1,tp=2", "a=1,b=4", "dp=2,pp=2"]),
        (6, ["dp=3,tp=2", "dp=2,tp=3", "x=6"]),
        (8, ["dp=2,pp=2,tp=2", "dp=4,tp=2"]),
    ],
)
def test_groups(launch, n, texts):
    """The group of an axis has the ranks that differ on that axis only."""
    assert re.findall(r"(\d) meshes", launch(n, GRID, *texts)) == [str(len(texts))] * n


# A job has room for 4096 groups.
FREED = """
import shoal
job = shoal.join()
for _ in range(4200):
    mesh = job.mesh("dp=2,tp=1")
    assert mesh["tp"].allreduce(bytearray(b"x")) == b"x"
    mesh.free()
mesh.free()
for what, why in ((mesh["dp"].barrier, "was freed"), (mesh["tp"].barrier, "was freed"),
                  (job.free, "as long as the job")):
    try:
        what()
    except ValueError as error:
        assert why in str(error), error
    else:
        raise AssertionError(what)
print("freed")
"""


def test_groups_that_are_freed_make_room(launch):
    """A job can make more groups than it has room for, one after the other, when they are freed."""
    assert launch(2, FREED).count("freed") == 2
