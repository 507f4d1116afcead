"""One rank of a run of torch's suite: runs the tests named in $TESTS one after another in this
process.

torch's own runner spawns fresh processes for every test, which costs seconds of imports each. Here
the ranks live on and every test gets a fresh process group. Each test's outcome is one JSON line in
$TEMP_DIR/results.RANK; after a failure the process ends, because the ranks may have parted ways,
and run.py starts a new set for the tests that are left.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta

RANK, WORLD_SIZE, BACKEND = (
    int(os.environ["RANK"]),
    int(os.environ["WORLD_SIZE"]),
    os.environ["BACKEND"],
)
TEMP_DIR = os.environ["TEMP_DIR"]
# seconds a test may take before every thread's stack is printed and the rank ends
DEADLINE = int(os.environ["DEADLINE"])

import torch
import torch.distributed as dist

import suite

if BACKEND == "shoal":
    import shoal.torch  # noqa: F401  registers the backend

torch.set_num_threads(1)
module, Suite = suite.load(BACKEND)
SKIPS = {skip.exit_code: skip.message for skip in module.TEST_SKIPS.values()}


def run(index: int, name: str) -> tuple:
    """Run the test `name`, the `index`th of this process, the way its own `_run` does, in a new
    process group; return (outcome, reason): "passed", "skipped" or "failed", and why. All ranks
    call it for the same tests. After a failure the process group is left as it is.
    """
    test = Suite(name)
    if getattr(getattr(Suite, name), "__unittest_skip__", False):
        return "skipped", getattr(Suite, name).__unittest_skip_why__
    suite.set_backend_name(module, name, BACKEND)
    test.rank, test.file_name = RANK, f"{TEMP_DIR}/init.{index}"
    torch.manual_seed(0)  # as in a fresh process, the same on every rank
    dist.init_process_group(
        BACKEND,
        init_method=test.init_method,
        rank=RANK,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout)),
    )
    test._barrier()
    try:
        getattr(test, name)()
        outcome = "passed", ""
    except unittest.SkipTest as skip:
        outcome = "skipped", str(skip)
    except SystemExit as end:
        outcome = (
            ("skipped", SKIPS[end.code])
            if end.code in SKIPS
            else ("failed", f"exited with code {end.code}")
        )
    except BaseException:
        return "failed", traceback.format_exc()
    test._barrier(wait_for=WORLD_SIZE)
    if dist.is_initialized():
        dist.destroy_process_group()
    # Some tests raise the debug level and leave it there.
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    dist.set_debug_level_from_env()
    return outcome


def main() -> None:
    """Run the tests of $TESTS one after another, and write their outcomes, up to the first failure,
    with which the process ends, with code 1.
    """
    with open(os.environ["TESTS"]) as f:
        tests = f.read().split()
    with open(f"{TEMP_DIR}/results.{RANK}", "w", buffering=1) as results:
        for index, name in enumerate(tests):
            faulthandler.dump_traceback_later(DEADLINE, exit=True)
            start = time.monotonic()
            outcome, reason = run(index, name)
            seconds = round(time.monotonic() - start, 3)
            results.write(
                json.dumps({"test": name, "outcome": outcome, "reason": reason, "seconds": seconds})
                + "\n"
            )
            if outcome == "failed":
                print(f"{name}: {reason}", file=sys.stderr, flush=True)
                os._exit(1)
    faulthandler.cancel_dump_traceback_later()


main()
