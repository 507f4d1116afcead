"""Training in rounds of local steps while workers are killed in their midst and others join: every
sample exactly once an epoch, the anchor the same bytes on all workers at every commit, and no
restart.
"""

import collections
import json
import pathlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")
import elastic_anchor
import running_job

WORKER = pathlib.Path(elastic_anchor.__file__)


def _rounds(lines):
    """The committed rounds of a worker's lines: for each, by the number of its first step, the
    samples and the last line.
    """
    found, own = {}, []
    for line in lines:
        own = [] if line["local"] == 0 else own
        own += line["own"]
        if "anchor" in line:
            found[line["step"] - line["local"]] = own, line
    return found


@pytest.mark.parametrize("sync", ["diloco:every=4", "pair:every=4"])
def test_a_worker_is_killed_in_mid_round_and_another_joins(launch, binary, tmp_path, sync):
    """Of three workers one kills itself in the third local step of a round, and when another has
    joined, rank 0 does. Meanwhile the job changes to synchronous SGD, for which all workers must
    get the same moments of Adam, or their parameters would part; and then to another strategy.
    """
    config = dict(sync=sync, out=str(tmp_path), doomed=[[1, 42]])
    end = tmp_path / "end"
    arguments = launch, binary, end, 3, WORKER, json.dumps(config)
    with running_job.running(*arguments, options=("--min", "1", "--prefork", "torch")) as job:
        job.read_until("2 workers: w1 was killed by SIGKILL")
        job.resize(3)
        job.read_until("JOINED")
        job.set("sync=ssgd")
        job.wait_for_new_step()
        (tmp_path / "end.doom").touch()
        job.read_until("2 workers: w0 was killed by SIGKILL")
        job.wait_for_new_step()
        job.set("sync=sma:alpha=0.2,round=2")
        job.wait_for_new_step()
        output = job.finish()
    assert output.count("RESULT") == 2 and "Traceback" not in output, output
    told = "the effect of about 4 samples went with replicas" in output
    assert told == sync.startswith("pair"), "a third of a batch of 12, by the worker that is lost"
    workers = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(tmp_path.glob("*.jsonl"))
    ]
    rounds = [_rounds(lines) for lines in workers]
    assert max(rounds[1]) == 36, "of the round in which w1 was killed its part does not count"
    taken = collections.Counter()
    for start in sorted(set().union(*rounds)):
        both = [found[start] for found in rounds if start in found]
        assert len({line["anchor"] for _, line in both}) == 1, f"anchors differ after {start}"
        for own, line in both:
            taken.update((line["epoch"], i) for i in own)
    assert set(taken.values()) == {1}, "a sample counts twice"
    epochs = max(epoch for epoch, _ in taken) + 1
    assert len(taken) == epochs * elastic_anchor.SAMPLES, "a sample is missing"
    assert {4, 1, 2} <= {line["locals"] for _, line in rounds[2].values()}
    joined = [line for lines in workers for line in lines if line["joined"]]
    assert len(joined) == 1
    theirs = [
        line
        for lines in workers
        for line in lines
        if line["step"] == joined[0]["step"] and line["rank"] == 0
    ]
    assert theirs[0]["inner"] == joined[0]["inner"], "it begins with the moments of rank 0"
    if sync.startswith("diloco"):
        assert theirs[0]["at"] == joined[0]["at"]


def test_a_broken_worker_is_seen_when_the_strategy_changes(launch, binary, tmp_path):
    """One of three workers changes its model for itself. Then no change of the strategy takes
    place, which is said with its rank, all go on together as before, and the setting of the job
    names the way by which they do.
    """
    config = dict(sync="auto", out=str(tmp_path), doomed=[], broken=[1, 3])
    arguments = launch, binary, tmp_path / "end", 3, WORKER, json.dumps(config)
    with running_job.running(*arguments, options=("--prefork", "torch")) as job:
        job.read_until("STEP 20")
        # who waits may find the change in force, or taken back already
        job.set("sync=hybrid,round=2", "--no-wait")
        assert job.read_until("change 1 (reverted|kept|void)")[1] == "reverted"
        assert job.status()["setting"]["sync"] == "ssgd" and job.status()["setting"]["round"] == 1
        job.wait_for_new_step()
        output = job.finish()
    assert "sync=hybrid is void, and the job goes on by ssgd" in output, output
    assert "rank 1 has another one than most" in output, output
    assert output.count("RESULT") == 3 and "Traceback" not in output, output
