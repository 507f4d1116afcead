"""shoal.Pool against a real keeper: jobs are submitted, wait, end, fail and are stopped."""

import collections
import datetime
import json
import os
import socket
import subprocess
import sys

import pytest

import shoal


@pytest.fixture
def pool(binary, tmp_path, monkeypatch):
    """A pool of two slots, which is ended after its jobs at the end of the test."""
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    start = [str(binary), "pool", "start", "lab", "--slots", "2", "--background"]
    subprocess.run(start, check=True, capture_output=True)
    pool = shoal.Pool()
    yield pool
    for job in pool.jobs():
        job.stop(now=True)
    for job in pool.jobs(over=True):
        try:
            job.wait(60)
        except shoal.PoolError:
            pass  # it was meant to fail
    subprocess.run([str(binary), "pool", "stop", "lab"], check=True)


def test_jobs_through_their_lives(pool, tmp_path):
    """A job that waits, one that ends, one that fails, and one that is refused."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    hold = pool.submit(["cat", str(gate)], workers=2, name="hold")
    late = pool.submit([sys.executable, "-c", "print(1)"], name="late", priority=-1)
    assert pool.name == "lab" and [job.name for job in pool.jobs()] == ["hold", "late"]
    while hold.state != "running":
        pass
    assert hold.workers == 2 and late.state == "waiting" and late.workers == 0
    with pytest.raises(TimeoutError, match="late is waiting"):
        late.wait(0)
    hold.stop(now=True)
    assert hold.wait(60) == "stopped" and hold.expected_end is None
    assert late.wait(60) == "ended"
    first = late.changes[0]
    assert (first.before, first.after) == (0, 1) and first.because and first.done >= first.at
    wrong = pool.submit([sys.executable, "-c", "raise SystemExit(3)"], name="late")
    assert wrong.name == "late-2"
    with pytest.raises(shoal.PoolError, match="late-2 has failed: .*code 3"):
        wrong.wait(60)
    with pytest.raises(shoal.PoolError, match="it needs 3 slots, and the pool has 2"):
        pool.submit(["true"], workers=3)
    with pytest.raises(shoal.PoolError, match="did you mean park"):
        pool.submit(["true"], preempt="parc")
    with pytest.raises(shoal.PoolError, match="no job called nobody"):
        shoal.pool.PoolJob(pool, "nobody").stop()


def test_only_the_pool_changes_the_size(pool, binary, tmp_path):
    """shoal resize is refused for a job of a pool, by hosts and with any too, in words that are
    true there.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    hold = pool.submit(["cat", str(gate)], workers=2, name="hold")
    while not hold.view().get("run"):
        pass
    for how in (["1"], ["--on", "here=1"], ["--on", "any"]):
        resize = [str(binary), "resize", "hold", *how]
        refused = subprocess.run(resize, capture_output=True, text=True)
        assert refused.returncode == 1 and "only pool lab changes it" in refused.stderr, how
    hold.stop(now=True)
    assert hold.wait(60) == "stopped"


def test_what_cannot_be_submitted(pool, tmp_path):
    """What makes no sense is refused in one line that says what to write, and is not submitted."""
    for command, options, error, match in (
        ("true", {}, TypeError, "give a list of its words, such as"),
        (["true"], {"workers": (4, 1)}, ValueError, r"write \(1, 4\)"),
        (["true"], {"workers": (1, 2, 3)}, TypeError, r"give a number, or .* such as \(1, 4\)"),
        (["true"], {"workers": "1:4"}, TypeError, "give a number"),
        (["true"], {"workers": 2.5}, TypeError, "give a number"),
        (["true"], {"workers": 0}, ValueError, "1 worker or more"),
        (["true"], {"workers": (0, 2)}, ValueError, "1 worker or more"),
        (["true"], {"workers": 2000}, shoal.PoolError, "give 1 to 1024"),
        (["true"], {"deadline": 3600}, TypeError, "give a datetime.timedelta"),
        (["true"], {"deadline": datetime.timedelta(0)}, shoal.PoolError, "is no time in which"),
        (["true"], {"name": "a/b"}, shoal.PoolError, "cannot name a job"),
        (["true"], {"env": {"RANK": 1}}, shoal.PoolError, "is set by shoal"),
        ([], {}, shoal.PoolError, "nothing to run"),
        (["true", "\udcff"], {}, shoal.PoolError, r"the word '.udcff' has bytes that are no"),
        (["true"], {"env": {"A": "\udcff"}}, shoal.PoolError, "the variable 'A' has bytes"),
        (["true"], {"directory": "/\udcff"}, shoal.PoolError, "the folder '/.udcff' has bytes"),
    ):
        with pytest.raises(error, match=match):
            pool.submit(command, **options)
    assert pool.jobs(over=True) == []
    script = tmp_path / "script"
    script.write_text("")
    one = pytest.importorskip("numpy").int64(1)
    job = pool.submit([sys.executable, script], workers=one, steps=one, priority=one)
    assert job.wait(60) == "ended"


# Each worker writes its samples of each committed step into a file of its own. A file says how many
# epochs there are.
TRAIN = """
import json, os, pathlib, sys
import numpy as np
import shoal
folder = pathlib.Path(sys.argv[1])
job = shoal.join()
total = np.zeros(1)
job.register("total", lambda: total, lambda value: np.copyto(total, value))
if len(sys.argv) < 3:
    job.checkpoint(str(folder / "checkpoints"), every=10**6)
for step in job.steps(97, batch=10, seed=3, epochs=int((folder / "epochs").read_text())):
    total += step.allreduce(np.ones(1))
    with open(folder / f"steps-{os.getpid()}", "a") as file:
        print(json.dumps([step.number, step.indices.tolist() if step.weight else []]), file=file)
(folder / f"behind-{os.getpid()}").touch()
"""


def committed(folder):
    """How often each sample was trained on in the steps that workers wrote, and these steps."""
    listed = [
        json.loads(line)
        for file in folder.glob("steps-*")
        for line in file.read_text().splitlines()
        if line.endswith("]")
    ]
    times = collections.Counter(i for _, some in listed for i in some)
    return times, sorted({number for number, _ in listed})


def wait_for_steps(folder):
    """Wait until a job of TRAIN has made some steps."""
    while len(committed(folder)[1]) < 20:
        pass


# Makes steps by itself, and waits before three of them.
OWN = """
import pathlib, sys
import shoal
shoal.goal(steps=40)
for step in range(1, 41):
    while step in (1, 11, 31) and not pathlib.Path(sys.argv[1], str(step)).exists():
        pass
    shoal.join().report(step=step, loss=0.5)
"""


@pytest.mark.parametrize("stated", [None, 40])
def test_the_end_of_a_job_with_a_loop_of_its_own(pool, tmp_path, stated):
    """The pool knows when it ends, by what the program or who submits it says, and its reports."""
    program = OWN if stated is None else OWN.replace("shoal.goal(steps=40)", "")
    job = pool.submit([sys.executable, "-c", program, str(tmp_path)], name="own", steps=stated)
    while job.view().get("goal") != 40:
        assert job.state in ("starting", "running")
    assert job.expected_end is None  # how fast it is nobody knows
    (tmp_path / "1").touch()
    while job.view()["steps"] < 10:
        assert job.state in ("starting", "running")
    (tmp_path / "11").touch()
    while job.view()["steps"] < 30 or job.expected_end is None:
        assert job.state == "running"
    (tmp_path / "31").touch()
    assert job.wait(60) == "ended"


def test_what_a_person_has_set_stays_where_a_job_is_parked(pool, binary, tmp_path):
    """The policies of a job that has been parked and goes on leave alone what a person has set."""
    pytest.importorskip("numpy")
    program, spec = tmp_path / "train.py", tmp_path / "job.json"
    program.write_text(TRAIN)
    (tmp_path / "epochs").write_text("100000000")
    command = [sys.executable, str(program), str(tmp_path)]
    spec.write_text(
        json.dumps({"name": "set", "command": command, "workers": 2, "auto": "act"})
    )

    def shoal_command(*words):
        """What a command of shoal prints, which must succeed."""
        return subprocess.run(
            [str(binary), *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    shoal_command("submit", "-f", str(spec))
    (job,) = pool.jobs()
    wait_for_steps(tmp_path)
    shoal_command("set", "set", "shares=2:1")
    (before,) = map(json.loads, shoal_command("ps", "--json").splitlines())
    assert before["setting"]["people"]["shares"] > 0
    job.park()
    while job.state != "parked":
        pass
    steps = job.view()["steps"]
    job.resume()
    while job.state != "running" or job.view()["steps"] <= steps:
        assert job.state in ("parked", "starting", "running")
    (after,) = map(json.loads, shoal_command("ps", "--json").splitlines())
    assert after["setting"]["people"] == {"shares": 0} and after["setting"]["shares"] == [2, 1]
    job.stop(now=True)
    assert job.wait(60) == "stopped"


def test_forked_workers_hold_the_slots_of_their_job(pool, binary, tmp_path):
    """The file by which the keeper knows that processes of a job are left is open in its workers,
    also where these are forked.
    """
    program, spec = tmp_path / "files.py", tmp_path / "job.json"
    program.write_text("import os\nfor f in os.listdir('/proc/self/fd'):\n"
                       "    if os.path.lexists('/proc/self/fd/' + f):\n"
                       "        print(os.readlink('/proc/self/fd/' + f))\n")
    for name, modules in (("anew", []), ("forked", ["json"])):
        command = [sys.executable, str(program)]
        spec.write_text(json.dumps({"name": name, "command": command, "prefork": modules}))
        subprocess.run([str(binary), "submit", "-f", str(spec)], check=True, capture_output=True)
        job = shoal.pool.PoolJob(pool, name)
        assert job.wait(60) == "ended"
        with open(f"{job.view()['run']}/rank-0.log") as log:
            assert f"/jobs/{name}.lock\n" in log.read()


def test_a_job_is_parked_for_an_urgent_one(pool, tmp_path):
    """It gives all its slots at the end of a step, and goes on with the next sample when it has
    slots again. One that writes no checkpoints keeps them, and the pool says why.
    """
    pytest.importorskip("numpy")
    program, gate = tmp_path / "train.py", tmp_path / "gate"
    program.write_text(TRAIN)
    os.mkfifo(gate)
    folders = tmp_path / "with", tmp_path / "without"
    for folder in folders:
        folder.mkdir()
        (folder / "epochs").write_text("100000000")
    train = [sys.executable, str(program)]
    low = pool.submit([*train, str(folders[0])], workers=2, name="low", preempt="park")
    wait_for_steps(folders[0])
    while low.view().get("goal") != 10**9:  # 100000000 epochs of 97 samples, of 10 a step
        assert low.state in ("starting", "running")
    low.park()  # by hand: it stays parked though slots are free
    while (view := low.view())["state"] != "parked":
        assert view["state"] in ("running", "parking") and view["parked_by"]
    assert low.because.startswith("parked by ") and low.workers == 0
    steps = low.view()["steps"]
    low.resume()
    while low.state != "running" or low.view()["steps"] <= steps:
        assert low.state in ("parked", "starting", "running")
    with pytest.raises(shoal.PoolError, match="nobody has parked it"):
        low.resume()
    urgent = pool.submit(["cat", str(gate)], workers=2, name="urgent", priority=10)
    while urgent.state != "running":
        assert low.state in ("running", "resizing", "parking", "parked")
    assert low.state == "parked" and low.workers == 0
    epochs = max(committed(folders[0])[1]) // 10 + 2
    (folders[0] / "epochs").write_text(str(epochs))
    urgent.stop(now=True)
    assert low.wait(120) == "ended"
    times, steps = committed(folders[0])
    assert steps == list(range(10 * epochs)), (steps[:3], steps[-3:])
    assert times == {i: epochs for i in range(97)}, times
    assert len(list(folders[0].glob("behind-*"))) == 2

    low = pool.submit([*train, str(folders[1]), "no"], workers=2, name="low", preempt="park")
    wait_for_steps(folders[1])
    urgent = pool.submit(["cat", str(gate)], workers=2, name="urgent", priority=10)
    refused = []
    while not refused:
        refused = [c.outcome for c in low.changes if c.outcome.startswith("refused: ")]
    assert "it could not be parked: " in refused[0] and "job.checkpoint" in refused[0], refused
    assert urgent.state == "waiting" and low.state == "running" and low.workers == 2


def test_without_a_pool(tmp_path, monkeypatch):
    """Without a pool, the error says how to start one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(shoal.PoolError, match="no pool is kept on this host: .*shoal pool start"):
        shoal.Pool()
    with pytest.raises(shoal.PoolError, match="no pool called lab answers"):
        shoal.Pool("lab")


def test_a_keeper_that_does_not_answer(tmp_path, monkeypatch):
    """It is not waited for without an end."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(shoal.pool, "_ANSWER_TIME", 0.01)
    (tmp_path / "shoal").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "shoal" / "pool-lab.sock"))
        stopped.listen()
        with pytest.raises(shoal.PoolError, match="lab has not answered for 0 s, as where it is"):
            shoal.Pool("lab")
