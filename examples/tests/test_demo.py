"""The demo in Python loses a worker and gains two, and neither a step nor a sample."""

import json
import pathlib
import subprocess
import sys

SHOAL = pathlib.Path(__file__).resolve().parent.parent.parent / "bin/shoal"


def test_demo(tmp_path, monkeypatch):
    """shoal demo --python trains with NumPy and with PyTorch, and loses neither a step nor a
    sample.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run(
        [SHOAL, "demo", "-n", "3", "--steps", "1500", "--json", f"--python={sys.executable}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    finals = {
        line["worker"]: line
        for line in map(json.loads, done.stdout.splitlines())
        if line.get("final")
    }
    assert set(finals) == {"numpy", "torch"}
    for final in finals.values():
        print(final)
        assert (
            final["steps_lost"],
            final["samples_lost"],
            final["samples_repeated"],
            final["parameters_equal"],
        ) == (0, 0, 0, True)
        assert len(final["recover_ms"]) == 1 and final["accuracy"] > 0.95
        # those that take longer to start than the rest to train do not join
        assert final["workers"] == 2 + len(final["join_ms"])
