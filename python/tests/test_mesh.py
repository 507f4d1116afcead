"""Ranks on named axes: who is where, and who is on a line with whom."""

import re

import pytest

import shoal


@pytest.mark.parametrize(
    "text, why",
    [
        ("dp", "not of the form"),
        ("dp=0", "at least 1"),
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
