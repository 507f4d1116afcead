"""What the workers of elastic_torch.py wrote down of a run, and what must hold of it: every sample
exactly once an epoch, and the same model, optimizer and scheduler everywhere, which are those that
one worker gets from the same batches.
"""

import collections
import json
import re

import elastic_torch
import numpy as np
import torch
from shoal.torch.scale import rate_factor


class Ledger:
    """What the workers wrote down of a run with this config, in the folder `path` and in what they
    printed. It is read once the job has ended, and not changed then. A check that fails raises
    AssertionError.

    `lines` has all that was written of steps, a dict for each worker and step (see elastic_torch);
    `steps` one of these for each step number; `joined` those of first steps of workers that joined
    later; `results` what the workers that went on to the end printed; `states` their arrays.
    """

    def __init__(self, path, output, **config):
        """Read what the workers wrote. Fails where two of them wrote different things of one step,
        or one that was not killed raised an error.
        """
        config = {**elastic_torch.DEFAULTS, **config}
        self.samples, self.batch, self.batch_range, self.optimizer, self.wrap, self.nest = (
            config[name]
            for name in ("samples", "batch", "batch_range", "optimizer", "wrap", "nest")
        )
        # whose processes that load data may complain
        killed = set(re.findall(r"\bw(\d+) was killed", output))
        assert set(re.findall(r"\[(\d+)\] Traceback", output)) <= killed, output
        self.output = output
        self.results = [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]
        self.states = [list(np.load(f).values()) for f in sorted(path.glob("*.npz"))]
        self.lines = [
            json.loads(line) for f in path.glob("*.jsonl") for line in f.read_text().splitlines()
        ]
        self.steps = {}
        for line in self.lines:
            seen = self.steps.setdefault(line["step"], line)
            same = ("taken", "epoch", "count", "batch", "rate", "worth")
            assert all(seen[key] == line[key] for key in same), (
                f"two workers differ: {seen}, {line}"
            )
        self.joined = [line for line in self.lines if line["joined"]]

    def check(self, survivors, losses=0):
        """Check all that must hold. `survivors` is how many workers ended with a result, `losses`
        how many were killed while they trained.
        """
        self.check_agreement(survivors)
        self._check_every_sample_once()
        self._check_batch_sizes(losses)
        for line in self.lines:
            assert set(line["own"]) <= set(line["taken"]), (
                f"a worker that went on was left out: {line}"
            )
            # As documented: a worker that joins begins with the random state of rank 0, which may
            # be killed in that step and then has written none.
            if line["joined"]:
                firsts = [
                    other["random"]
                    for other in self.lines
                    if other["step"] == line["step"] and other["rank"] == 0
                ]
                assert line["random"] in firsts or losses and not firsts
        self._check_against_one_worker()

    def check_nested(self):
        """Check a loop in a loop: each epoch ended once for rank 0, which is never a worker that
        has not joined.
        """
        saved = re.findall(r"SAVED (\d+) (\w+)", self.output)
        assert saved == [(str(epoch), "False") for epoch in range(len(saved))]
        assert len(saved) >= max(step["epoch"] for step in self.steps.values())

    def check_agreement(self, survivors):
        """Check what must hold also where gradients were rounded: the survivors agree, and no step
        is missing.
        """
        assert len(self.results) == len(self.states) == survivors, self.output
        assert len({tuple(r[2:]) for r in self.results}) == 1, f"the workers differ: {self.results}"
        assert {r[1] for r in self.results} == {survivors} and sorted(
            r[0] for r in self.results
        ) == list(range(survivors)), self.results
        assert sorted(self.steps) == list(range(self.results[0][2])), "a step is missing"

    def _check_every_sample_once(self):
        """Check that every sample came exactly once an epoch."""
        times = collections.defaultdict(collections.Counter)
        for step in self.steps.values():
            times[step["epoch"]].update(step["taken"])
        assert sorted(times) == list(range(len(times)))
        for epoch, counter in times.items():
            assert counter == collections.Counter(range(self.samples)), (
                f"epoch {epoch}: {counter.most_common(3)}"
            )

    def _check_batch_sizes(self, losses):
        """Check that every step had a whole batch, but at the ends of epochs and after losses, of
        workers that were killed.
        """
        epochs = {step["epoch"] for step in self.steps.values()}
        short = sum(len(step["taken"]) < step["batch"] for step in self.steps.values())
        tails = len(epochs) if self.samples % self.batch or self.batch_range else 0
        assert max(len(step["taken"]) - step["batch"] for step in self.steps.values()) == 0
        assert self.batch_range or {step["batch"] for step in self.steps.values()} == {self.batch}
        # the lost part comes as a batch of its own
        assert short <= tails + 2 * losses, (
            f"{short} steps of {len(self.steps)} had less than a batch"
        )
        assert losses or self.batch_range or short == tails

    def _check_against_one_worker(self):
        """Make the same steps by one worker, and compare its state with that of the survivors."""
        model = elastic_torch.Net(self.samples)
        optimizer, scheduler = elastic_torch.make_optimizer(model, self.optimizer)
        x, y, index = elastic_torch.make_data(self.samples).tensors
        epoch = 0
        for _, step in sorted(self.steps.items()):
            if self.nest and step["epoch"] != epoch:
                scheduler.step()
                epoch = step["epoch"]
            batch = torch.tensor(step["taken"])
            optimizer.zero_grad()
            elastic_torch.loss_of(model, x[batch], y[batch], index[batch]).backward()
            factor = rate_factor("auto", optimizer, step["batch"] / self.batch, step["rate"])
            rates = [group["lr"] for group in optimizer.param_groups]
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate
            if not self.nest:
                scheduler.step()
            model.take_marks()
        alone = elastic_torch.arrays(elastic_torch.state_of(model, optimizer, scheduler, self.wrap))
        assert len(self.states[0]) == len(alone)
        for value, want in zip(self.states[0], alone):
            np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-11)
