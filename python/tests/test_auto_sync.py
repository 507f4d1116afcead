"""A job that changes how its workers synchronise while it trains: by policy `sync`, which goes by
what an exchange costs, and by policy `adaptive`, which goes by the noise of gradients.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile

import pytest

import running_job

pytest.importorskip("numpy")
pytest.importorskip("torch")

# The gradient of a sample is one in each element, and noise, which is ten times as large where the
# file that ends the training is there with the ending ".noisy". A step takes so many seconds at
# least, off the processor. Each worker writes down the numbers of the samples that it took.
WORKER = """
import json, os, sys, time
import torch
import shoal, shoal.torch

width, seconds, out, end = int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]
torch.set_num_threads(1)
job = shoal.join()
notes = open(f"{out}/{os.environ['SHOAL_RANK']}.jsonl", "w")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, i):
        return i


draws = torch.Generator().manual_seed(job.rank)
noises = [torch.randn(width, generator=draws) for _ in range(16)]
model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(width))])
loader = shoal.torch.loader(Numbers(), 16, seed=1)
inner = torch.optim.SGD(model.parameters(), lr=1e-4)
optimizer = shoal.torch.optimizer(inner, model, sync="auto")
own = []
for indices in loader:
    step = loader.step
    if step.number == 0 and job.rank == 0:
        print("STEP 0", flush=True)
    time.sleep(seconds)
    spread = 60 if os.path.exists(f"{end}.noisy") else 6
    draw = int(torch.randint(16, (), generator=draws))
    gradient = noises[draw].mul(spread / max(len(indices), 1) ** 0.5).add_(1)
    (model[0] * gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    own = [] if step.local_index == 0 else own
    own += indices.tolist() if step.local_weight else []
    if step.ends_round:
        line = dict(committed=step.after.committed(), locals=step.local_steps, own=own)
        print(json.dumps(line), file=notes, flush=True)
        made = step.number + 1
        if made // 16 > (made - step.local_steps) // 16:
            if job.allreduce(torch.tensor([int(os.path.exists(end))]), op="max")[0]:
                break
"""


def check_samples(folder):
    """Check that each sample counted once, by what workers have written into a folder, and return
    the lengths of their rounds.
    """
    taken, lengths, committed = collections.Counter(), set(), 0
    for file in folder.glob("*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            taken.update(line["own"])
            lengths.add(line["locals"])
            committed = max(committed, line["committed"])
    assert set(taken.values()) == {1}, "a sample counts twice"
    assert len(taken) == committed, "a sample is missing"
    return lengths


@pytest.fixture
def train(launch, binary, tmp_path):
    """Returns train(n, policy, width, seconds, *options), which is a block with a job of n workers
    that have so many parameters and make steps of so many seconds, with a policy and these options
    of shoal run.
    """
    program = tmp_path / "worker.py"
    program.write_text(WORKER)

    def start(n, policy, width, seconds, *options):
        """The block."""
        options = ["--auto", "--policy", policy, "--prefork", "torch", *options]
        words = launch, binary, tmp_path / "end", n, program, width, seconds, tmp_path
        return running_job.running(*words, options=options)

    return start


@contextlib.contextmanager
def joined(binary, job, token):
    """A block with another host for a job, of one slot: a launcher on this machine."""
    address = re.search(r"shoal agent --join (\S+) ", job.output)[1]
    with tempfile.TemporaryDirectory(prefix="host") as folder:  # the path of a socket must be short
        process = subprocess.Popen(
            [str(binary), "agent", "--join", address, "--name", "b", "--slots", "1"]
            + ["--token-file", str(token)],
            env={**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def test_workers_make_local_steps_while_the_network_is_slow(train, binary, tmp_path):
    """Policy `sync` goes to rounds of local steps where averages take longer than gradients, and
    back to synchronous SGD when they do not any more. Each sample counts once.
    """
    token = tmp_path / "token"
    listens = ["--listen", "127.0.0.1:0", "--token-file", token, "--slots", "1"]
    with train(1, "sync", 1 << 16, 0.02, *map(str, listens)) as job, joined(binary, job, token):
        job.limit("1MB/s")  # an exchange of 256 KiB takes 262 ms
        job.resize(2)  # who limits two workers makes them slower, which no policy is to wait for
        change = r"change (\d+) at step \d+: round 1 -> (\d+), sync ssgd -> local"
        made, steps = job.read_until(change).groups()
        assert job.read_until(f"change {made} (kept|reverted|void)")[1] == "kept"
        job.limit("none")
        made = job.read_until(r"change (\d+) at step .*: round \d+ -> 1, sync local -> ssgd")[1]
        assert job.read_until(f"change {made} (kept|reverted|void)")[1] == "kept"
        output = job.finish()
    assert "Traceback" not in output, output
    assert {1, int(steps)} <= check_samples(tmp_path)


def test_a_training_begins_with_averaged_models_until_its_noise_grows(train, tmp_path):
    """Policy `adaptive`, the rule of KungFu, goes to `sma` at the first chance, and to synchronous
    SGD once, when the noise of the gradients has grown.
    """
    with train(2, "adaptive", 4096, 0.004) as job:
        made = job.read_until(r"change (\d+) at step \d+: sync ssgd -> sma, because a training beg")
        assert job.read_until(f"change {made[1]} (kept|reverted|void)")[1] == "kept"
        while "standard deviations above its first 8 looks" not in job.explain():
            pass  # the looks at the noise that later ones are compared with
        (tmp_path / "end.noisy").touch()
        made = job.read_until(r"change (\d+) at step \d+: sync sma -> ssgd, because the gradient n")
        assert job.read_until(f"change {made[1]} (kept|reverted|void)")[1] == "kept"
        output = job.finish()
    assert "Traceback" not in output, output
    assert check_samples(tmp_path) == {1}
