"""Checkpoints of a job: started again on any number of workers it goes on at the same sample,
whatever was killed or damaged.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("numpy")
import numpy as np
from running_job import HANG

import shoal
from shoal._checkpoint import commit, shards, source, writer
from shoal._checkpoint.fingerprint import PRIME, Key, format_fingerprint

WORKER = pathlib.Path(__file__).with_name("checkpoint_numpy.py")
SAMPLES, BATCH, EPOCHS = 300, 16, 4  # 76 steps


@pytest.fixture
def train(launch, tmp_path):
    """Returns train(n, more environment): trains checkpoint_numpy.py on n workers to the end, or to
    the kill, and returns what was printed.
    """

    def run(n, folder="checkpoints", every=5, keep=2, more=1, **env):
        """Start a job, and return what it printed, however it ended. `folder` is one in the folder
        of the test, `every` and `keep` are those of its checkpoints, `more` is how many float64
        more the state has.
        """
        process = launch.start(
            n,
            WORKER,
            tmp_path / folder,
            SAMPLES,
            BATCH,
            EPOCHS,
            every,
            keep,
            more,
            env={k: str(v) for k, v in env.items()},
        )
        output, _ = process.communicate(timeout=HANG)
        return output

    return run


def results(output):
    """What each worker that finished printed as RESULT, by rank; fails where any raised an
    error.
    """
    assert "Traceback" not in output, output
    return {r[0]: r[1:] for r in map(json.loads, re.findall("RESULT (.*)", output))}


def steps(folder):
    """The steps of the sealed checkpoints in a folder, the newest first."""
    return [s.step for s in commit.sealed_checkpoints(str(folder))]


@pytest.mark.parametrize("n", [1, 3])
def test_the_same_number_of_workers_ends_with_the_same_bits(train, n):
    """As many workers end, when started again, with the bits of a job that went undisturbed."""
    whole = results(train(n, folder="undisturbed"))
    train(n, STOP=31)
    output = train(n)
    assert int(re.search(r"FROM (\d+)", output)[1]) in range(5, 32), output
    assert results(output) == whole


@pytest.mark.parametrize("before, after", [(2, 3), (3, 2), (1, 2), (3, 1)])
def test_another_number_of_workers_takes_every_sample_once(train, before, after):
    """More or fewer workers go on from a checkpoint, and end with every sample taken once."""
    train(before, STOP=23)
    output = train(after)
    # the workers count the samples
    assert int(re.search(r"FROM (\d+)", output)[1]) >= 5 and len(results(output)) == after, output


@pytest.mark.parametrize("n", [2, 3])
def test_where_rank_0_is_killed_before_it_has_looked_the_next_one_looks(train, n):
    """Where rank 0 is lost before it has listed the checkpoints, the next rank does, and the job
    goes on from one.
    """
    train(2, STOP=31)
    output = train(n, LOOKING=0)
    assert (
        int(re.search(r"FROM (\d+)", output)[1]) in range(5, 32) and len(results(output)) == n - 1
    ), output


def test_the_last_one_is_that_of_the_end_and_so_many_are_kept(train, tmp_path):
    """There is a checkpoint of the last step, and `keep` of them stay."""
    train(2, keep=1)
    assert steps(tmp_path / "checkpoints") == [76]
    assert os.readlink(tmp_path / "checkpoints" / "latest") == "step-000000000076"
    output = train(2)
    assert "FROM" not in output and len(results(output)) == 2, output


def damage(path):
    """Change a bit near the end of a file."""
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_a_damaged_one_is_passed_over(train, tmp_path, binary):
    """The checkpoint before a damaged one is used."""
    train(2, keep=3)
    newest, *older = steps(tmp_path / "checkpoints")
    damage(tmp_path / "checkpoints" / f"step-{newest:012d}" / "shard-00002-of-00002.safetensors")
    assert subprocess.run(
        [binary, "state", "verify", tmp_path / "checkpoints" / "latest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ).returncode
    output = train(3, keep=3)
    assert (
        f"checkpoint of step {newest} cannot be used" in output and "not as it was sealed" in output
    )
    assert (
        f"goes on from the checkpoint of step {older[0]}" in output and len(results(output)) == 3
    ), output


def test_when_all_are_damaged_the_training_does_not_begin_anew(train, tmp_path):
    """Where all checkpoints are damaged the job ends with an error, and does not begin anew."""
    train(1, keep=1)
    damage(next((tmp_path / "checkpoints").glob("step-*/*.safetensors")))
    output = train(1, keep=1)
    assert "none of the 1 checkpoints" in output and "FROM" not in output, output


def test_the_checkpoint_of_another_job_at_the_same_step_is_told(tmp_path):
    """To seal another checkpoint of a step fails with a reason, and the sealed one stays."""
    attempts = []
    for seed in 1, 2:
        staging = commit.Unsealed(str(tmp_path), 5, seed)
        staging.make_folder()
        pathlib.Path(staging.path, commit.MANIFEST).write_text("{}")
        attempts.append(staging)
    assert attempts[0].seal(keep=2)
    with pytest.raises(OSError, match="another job writes into the folder"):
        attempts[1].seal(keep=2)
    assert steps(tmp_path) == [5] and not list(tmp_path.glob(".staging-*"))


@pytest.mark.parametrize("doomed", [0, 1])
def test_a_worker_that_is_killed_while_it_writes(train, tmp_path, doomed):
    """The checkpoint under way is abandoned, and the workers that are left make the later ones."""
    output = train(3, DOOMED=doomed)
    assert "checkpoint of step 5 in" in output and "is abandoned: a worker was lost" in output, (
        output
    )
    ended = results(output)
    assert len(ended) == 2 and steps(tmp_path / "checkpoints")[0] == ended[0][1], output


@pytest.mark.parametrize("orphaned", [0, 2])
def test_a_part_is_written_when_its_worker_is_killed(train, tmp_path, orphaned):
    """The agent writes the part of a worker that is dead."""
    output = train(3, ORPHANED=orphaned, more=1_000_000, keep=100)
    # The first one may wait for memory; the worker is killed in it.
    assert (
        len(results(output)) == 2
        and "is abandoned: " not in output
        and "bytes by 3 workers" in output
    ), output


@pytest.mark.parametrize("more", [1, 1_000_000])
def test_without_memory_for_a_part_nobody_writes(train, tmp_path, more):
    """Where one worker has no memory for its part, there is no checkpoint, and training goes on."""
    output = train(2, CRAMPED=1, more=more)
    said = re.findall(
        r"there is no memory for a checkpoint in .*, and training goes on: (.*)", output
    )
    # once a checkpoint, not once a step
    assert (
        len(results(output)) == 2 and 1 <= len(said) <= 17 and set(said) == {"the job has no more"}
    ), output
    assert not list((tmp_path / "checkpoints").iterdir()) and "sealed" not in output, output


@pytest.mark.parametrize("elements", [1, 1_000_000])
def test_a_job_of_one_without_memory_for_a_part(tmp_path, monkeypatch, capfd, elements):
    """Without an agent too, training goes on where there is no memory for a checkpoint."""

    def refused(*_):
        """Refuse memory."""
        raise MemoryError

    monkeypatch.setattr(writer, "allocate_touched", refused)
    with shoal.join() as job:
        job.register("large", lambda: np.zeros(elements), lambda _: None)
        job.checkpoint(tmp_path / "checkpoints", every=10)
        assert (
            len([step.allreduce(np.zeros(1)) for step in job.steps(100, batch=1, epochs=1)]) == 100
        )
    said = capfd.readouterr().err.splitlines()
    assert 1 <= len(said) <= 11 and all(
        "training goes on: the system does not give" in line for line in said
    ), said


@pytest.mark.parametrize("error", [KeyError("step"), ValueError("another shape")], ids=repr)
def test_state_that_the_program_cannot_take(tmp_path, error):
    """An error of a registered setter names the checkpoint."""

    def take(_):
        """Refuse a state."""
        raise error

    for _ in range(2):
        with shoal.join() as job:
            job.register("optimizer", lambda: {"momentum": np.zeros(3)}, take)
            job.checkpoint(tmp_path / "checkpoints", every=1)
            try:
                for step in job.steps(4, batch=1, steps=2):
                    step.allreduce(np.zeros(1))
            except shoal.ShoalError as raised:
                said = str(raised)
    assert (
        "the checkpoint of step 2 in" in said
        and f"does not fit this program ({type(error).__name__}: {error}): name another folder"
        in said
    )


def test_a_job_of_one_goes_on_with_and_without_an_agent(train, alone, tmp_path):
    """A checkpoint that the agent wrote is read without one, and the other way round."""

    def train_alone(folder, **options):
        """Train checkpoint_numpy.py as a job of one without an agent; return what it printed."""
        numbers = (SAMPLES, BATCH, EPOCHS, 5, 100, 100_000)
        return alone(WORKER, tmp_path / folder, *numbers, **options)

    whole = results(train_alone("undisturbed"))
    train_alone("alone", code=-signal.SIGKILL, env={"STOP": "31"})
    train(1, folder="launched", keep=100, more=100_000, STOP=31)
    for name in ("shard-00001-of-00001.safetensors", "shoal-checkpoint.json"):
        alike = [
            (tmp_path / folder / "step-000000000005" / name).read_bytes()
            for folder in ("alone", "launched")
        ]
        assert alike[0] == alike[1]
    assert results(train(1, folder="alone", keep=100, more=100_000)) == whole
    assert results(train_alone("launched")) == whole


def test_what_others_can_read(train, tmp_path, binary):
    """The commands of `shoal state` read and verify a checkpoint."""
    train(3, more=5000)
    for tool in ("ls", "check", "verify"):
        done = subprocess.run(
            [binary, "state", tool, tmp_path / "checkpoints" / "latest"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout


def test_kill_everything_at_random_moments(launch, tmp_path, binary):
    """What was sealed stays whole, and the job goes on. KILLS=100 for more; SEED=N repeats."""
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print("seed", seed)
    choice = random.Random(seed)
    folder, reached = tmp_path / "checkpoints", 0
    for _ in range(int(os.environ.get("KILLS", 3))):
        n = choice.choice([1, 2, 3])
        process = launch.start(n, WORKER, folder, 3000, 10, 100, 3, 2, 100_000)
        wanted, lines, pids = choice.randrange(2, 14), 0, []
        for line in process.stdout:
            pids += map(int, re.findall(r"PID (\d+)", line))
            assert "Traceback" not in line and "cannot be used" not in line, line
            lines += "STEP" in line or "sealed" in line
            if lines >= wanted:
                break
        for pid in [process.pid, *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        found = steps(folder)
        assert not found or found[0] >= reached, (
            f"step {reached} was sealed, and now the newest is {found}"
        )
        reached = found[0] if found else 0
        for step in found:
            done = subprocess.run(
                [binary, "state", "verify", folder / f"step-{step:012d}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.returncode == 0, done.stdout
    assert reached


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 4 MiB, which is mounted for the test; skips it where that cannot be."""
    if os.geteuid() or not sys.platform.startswith("linux"):
        pytest.skip("needs root to mount a small disk")
    path = tmp_path / "small"
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], stderr=subprocess.DEVNULL
    ).returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk(train, small_disk):
    """Training goes on where the disk is full, no half a checkpoint appears, and the user is
    told.
    """
    output = train(2, folder=small_disk / "checkpoints", more=1_000_000)
    assert (
        "which does not stop the job" in output
        and "no space left" in output.lower()
        and "; make room there" in output
        and len(results(output)) == 2
    ), output
    assert steps(small_disk / "checkpoints") == [] and not list(
        small_disk.glob("checkpoints/step-*")
    )


def test_a_full_disk_without_an_agent(alone, small_disk):
    """Where a job of one without an agent meets a full disk, training goes on, no half a checkpoint
    appears, and the user is told.
    """
    output = alone(WORKER, small_disk / "checkpoints", 40, 4, 1, 4, 2, 1_000_000)
    assert (
        "no space left" in output.lower()
        and "; make room there" in output
        and len(results(output)) == 1
    ), output
    assert not list(small_disk.glob("checkpoints/*step-*")) and not list(
        small_disk.glob("checkpoints/.staging-*")
    )


@pytest.mark.parametrize(
    "folder", ["", " ", b"", "s3://", "gs://b/c", "a\0b", pathlib.Path("s3://b/c")], ids=repr
)
def test_a_name_of_nothing_is_refused(folder):
    """A name that is neither a folder nor a bucket is refused at once."""
    with (
        shoal.join() as job,
        pytest.raises(ValueError, match=re.escape("): name a folder, or s3://BUCKET/PREFIX")),
    ):
        job.checkpoint(folder)


def test_state_in_itself_is_refused():
    """A value that contains itself is refused when it is registered."""
    state = []
    state.append(state)
    with (
        shoal.join() as job,
        pytest.raises(
            TypeError, match="state is in itself, or nested too deeply, which can go neither"
        ),
    ):
        job.register("state", lambda: state, lambda value: None)


def test_what_is_no_folder_is_said_to_be_none(tmp_path):
    """A file in the place of the folder is named; where there is nothing, there is no
    checkpoint.
    """
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            shoal.ShoalError,
            match="nobody can look for checkpoints in .*Not a directory.*; name a folder",
        ):
            source.FolderSource(str(path), 2).newest(0)
    assert source.FolderSource(str(tmp_path / "later"), 2).newest(0) is None


def test_a_place_that_takes_no_checkpoints_ends_the_job_before_its_first_step(train):
    """A place that cannot be written to is an error at the start, with an agent and without one."""
    why = "no checkpoint can be written to /proc/shoal: "
    output = train(2, folder="/proc/shoal")
    assert why in output and "FROM" not in output, output
    with shoal.join() as job:
        job.checkpoint("/proc/shoal", every=1)
        with pytest.raises(shoal.ShoalError, match=why):
            next(job.steps(4, batch=1))


@pytest.mark.parametrize("folder", [True, False])
def test_a_folder_called_latest_stays(tmp_path, folder):
    """The link to the newest checkpoint never replaces a folder or a file of that name."""
    sealed, mine = tmp_path / "step-000000000005", tmp_path / "latest"
    sealed.mkdir()
    (sealed / commit.MANIFEST).write_text("{}")
    if folder:
        (mine / "mine").mkdir(parents=True)
    else:
        mine.write_text("global_step100")  # as DeepSpeed has it
    commit.update_latest(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-000000000005"]
    assert mine.is_dir() if folder else mine.read_text() == "global_step100"


def test_the_fingerprint_has_the_values_of_the_format():
    """Fingerprints are those of docs/formats/fingerprint.md."""
    key, ramp = Key(42), np.arange(20000).astype(np.uint8)
    assert (
        format_fingerprint(key.weighted_sum(3, np.array([1, 2, 3], np.uint8)), 3)
        == "10d789e83ddacd6b/3"
    )
    assert format_fingerprint(key.weighted_sum(1 << 40, ramp), 20000) == "1c56b3b30ed50583/20000"
    assert (
        format_fingerprint(key.state_term("w", "bf16", [2, 3], key.weighted_sum(0, ramp)), 20000)
        == "149e72d2d376f2b4/20000"
    )
    for cut in (1, 8191, 8192, 9001):
        assert (
            key.weighted_sum(0, ramp[:cut]) + key.weighted_sum(cut, ramp[cut:])
        ) % PRIME == key.weighted_sum(0, ramp)


def test_shares_are_whole_rows_and_all_of_them():
    """The ranges of all ranks cover every tensor once, in whole rows."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    choice = random.Random(seed)
    for _ in range(300):
        shapes = [
            [choice.choice([0, 1, 1, 2, 7, 100]) for _ in range(choice.randrange(4))]
            for _ in range(choice.randrange(6))
        ]
        kept = [
            shards.TensorInfo(f"t{i}", "F32", s, 4 * int(np.prod(s))) for i, s in enumerate(shapes)
        ]
        size = choice.randrange(1, 6)
        runs = sorted(run for rank in range(size) for run in shards.shard_ranges(kept, rank, size))
        for i, k in enumerate(kept):
            mine = [(a, b) for j, a, b in runs if j == i]
            assert mine and mine[0][0] == 0 and mine[-1][1] == k.nbytes
            assert all(x[1] == y[0] for x, y in zip(mine, mine[1:])) and all(
                a % k.row_bytes() == 0 for a, _ in mine
            )


TORCH = pathlib.Path(__file__).with_name("checkpoint_torch.py")


def test_torch_goes_on_with_the_same_bits(launch, tmp_path):
    """A PyTorch job that was killed ends, on as many workers, with the bits of one that went
    undisturbed; on another number of workers, all end with the same parameters.
    """
    pytest.importorskip("torch")

    def train(folder, n, **env):
        """Train checkpoint_torch.py on n workers to the end, or to the kill; return the results of
        those that finished, by rank.
        """
        job = launch.start(n, TORCH, tmp_path / folder, env=env, prefork="torch")
        return results(job.communicate(timeout=HANG)[0])

    whole = train("undisturbed", 2)
    assert len(whole) == 2 and whole[0][0] == 40
    assert not train("checkpoints", 2, STOP="17")
    again = train("checkpoints", 2)
    assert 3 <= again[0][3] <= 17 and {rank: r[:3] for rank, r in again.items()} == {
        rank: r[:3] for rank, r in whole.items()
    }
    # how gradients travel is no part of a checkpoint
    assert not train("others", 3, STOP="17", COMPRESS="bf16")
    other = train("others", 2)
    assert len(other) == 2 and other[0][0] == 40 and other[0][1] == other[1][1]
