"""Lightning's Trainer while workers join and are killed: the losses, steps and parameters of one
worker that trains on the same batches.
"""

import collections
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
import running_job
import trainers_common as common

WORKER = pathlib.Path(common.__file__).with_name("trainers_lightning.py")


def test_losses_and_joins(launch, binary, tmp_path):
    config = json.dumps(dict(out=str(tmp_path), gates=[5, 9], batch=8, accumulate=1))
    with running_job.running(launch, binary, tmp_path / "end", 3, WORKER, config) as job:
        output = common.lose_and_replace(job, binary, tmp_path)
    ended = running_job.results(output)
    assert "Traceback" not in output and sorted(r[0] for r in ended) == [0, 1], output
    for result in ended:
        assert result[2] == ended[0][2]
    steps = common.ledger(tmp_path)
    assert [line["step"] for line in steps] == list(range(1, 37))
    assert [line["seen"] for line in steps] == list(range(1, 37))
    taken = collections.Counter(i for line in steps for i in line["taken"])
    assert taken == collections.Counter({i: 3 for i in range(96)})
    alone, net = common.replayed([s["taken"] for s in steps], 96, 36, clip=0.5)
    for line, (loss, _) in zip(steps, alone):
        assert line["loss"] == pytest.approx(loss, rel=1e-6), line
    loss, right = common.evaluated(net, common.Data(37, seed=1))
    assert ended[0][2][2][-1][1:] == pytest.approx([loss, right], rel=1e-6)
    assert len(ended[0][2][2]) == 3
