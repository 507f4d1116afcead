"""What the Python tests share, as pytest loads it before them: the package on the path, the binary,
built when it is not there, options, and fixtures that run programs. All of it runs on the main
thread of pytest's process.
"""

import collections
import os
import pathlib
import subprocess
import sys

import pytest
from running_job import HANG

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
# A test process is nobody's worker, even under `shoal run`.
for name in [n for n in os.environ if n.startswith("SHOAL_")]:
    del os.environ[name]


def pytest_addoption(parser):
    """Declare the options of these tests. As all pytest_ functions here, called by pytest."""
    parser.addoption(
        "--every-combination",
        action="store_true",
        help="run every combination of parameters, where otherwise every pair of them is met",
    )
    parser.addoption(
        "--slice",
        metavar="K/N",
        help="of the parameters of each test that starts jobs run the K-th of N parts, K from 0",
    )


def pytest_configure(config):
    """Declare the marks of these tests."""
    config.addinivalue_line("markers", "combination: repeats pairs that other parameters have")


def pytest_collection_modifyitems(config, items):
    """Leave out what is marked for every combination, unless that is asked for, and what is not in
    the slice.
    """
    left = []
    if not config.getoption("--every-combination"):
        left += [item for item in items if item.get_closest_marker("combination")]
    if config.getoption("--slice"):
        part, parts = map(int, config.getoption("--slice").split("/"))
        left += items_outside_part(part, parts, [item for item in items if item not in left])
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


# The files whose tests start jobs, which take seconds of the processors each.
STARTS_JOBS = ("elastic", "torch", "live", "transfer", "checkpoint", "collectives", "signals")


def items_outside_part(part, parts, items):
    """Of these items, those that are not in part `part` (from 0) of `parts`. Only tests that start
    jobs are divided; of each at least one case is in every part.
    """
    tests = collections.defaultdict(list)
    for item in items:
        if item.path.stem.removeprefix("test_").startswith(STARTS_JOBS):
            tests[item.path, item.parent.name, item.originalname].append(item)
    left = []
    for cases in tests.values():
        n = min(parts, len(cases))
        left += [case for i, case in enumerate(cases) if i % n != part % n]
    return left


_BEGAN = pytest.StashKey()  # processor seconds that this process had used when a test began


def used_seconds():
    """The processor seconds of this process, those that it has waited for, and the servers."""
    world = sys.modules.get("torch_world")
    return sum(os.times()[:4]) + (world.processor_seconds() if world else 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Note the processor seconds that this process had used before a test."""
    item.stash[_BEGAN] = used_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Add to the last report of a test the processor seconds that it has used, with those of the
    processes that it has waited for, and of ranks that are forked from torch_world's servers.
    """
    report = (yield).get_result()
    if call.when == "teardown" and _BEGAN in item.stash:
        used = used_seconds() - item.stash[_BEGAN]
        report.user_properties.append(("processor_seconds", f"{used:.2f}"))


@pytest.fixture(autouse=True)
def left_job():
    """Leave the job that a test of this process has joined and not left, at its end: it would be
    that of the tests after it, whose data is another one.
    """
    module = sys.modules.get("shoal.job")
    before = module and module._current
    yield
    module = sys.modules.get("shoal.job")
    if module and module._current not in (None, before):
        module._current.leave()


@pytest.fixture(scope="session")
def binary():
    """The path of bin/shoal, which is built where it is not there."""
    path = ROOT / "bin" / "shoal"
    if not path.exists():
        subprocess.run(["make", "build"], cwd=ROOT, check=True)
    return path


@pytest.fixture
def agent():
    """An agent for one rank, made of Python (see agent_double), until the end of the test."""
    from agent_double import AgentDouble

    with AgentDouble() as double:
        yield double


@pytest.fixture(scope="session")
def alone():
    """Returns alone(script or source, *arguments): runs it without the launcher, as a job of one,
    waits for its end, expects exit code `code`, returns what it printed to stdout and stderr. A
    pathlib.Path is a script, a string is source. `env` is added to this process's environment.
    """

    def run(program, *arguments, code=0, env=None):
        """What `alone` says. Fails with another exit code, and after HANG seconds."""
        source = [] if isinstance(program, pathlib.Path) else ["-c"]
        done = subprocess.run(
            [sys.executable, *source, str(program), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == code, (
            f"exit code {done.returncode}, want {code}\n{done.stdout[-6000:]}"
        )
        return done.stdout

    return run


@pytest.fixture(scope="session")
def launch(binary, tmp_path_factory):
    """Returns launch(n, script or source, *arguments): runs it on n ranks of this host, waits for
    the end of the job, expects exit code `code` of the launcher, returns what all printed to stdout
    and stderr. A pathlib.Path is a script, a string is source. `env` is added to this process's
    environment. With `prefork`, the value of that option of shoal run, the workers are forks of a
    process that has imported these modules (see torch_world.template_words). launch.start only
    starts the job, and returns the process of the launcher.
    """

    def run(n, program, *arguments, code=0, env=None, prefork=None):
        """What `launch` says. Fails with another exit code, and after HANG seconds."""
        process = start(n, program, *arguments, env=env, prefork=prefork)
        try:
            output, _ = process.communicate(timeout=HANG)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
        assert process.returncode == code, (
            f"exit code {process.returncode}, want {code}\n{output[-6000:]}"
        )
        return output

    def start(n, program, *arguments, env=None, options=(), prefork=None):
        """Start a job with these `options` of shoal run. The caller reads the pipe `stdout`, which
        has all output, and ends and waits for the process.
        """
        words = ["--", sys.executable]
        if prefork:
            from torch_world import template_words

            words = template_words(prefork)
        if not isinstance(program, pathlib.Path):
            path = tmp_path_factory.mktemp("program") / "worker.py"
            path.write_text(program)
            program = path
        command = [
            str(binary),
            "run",
            "-n",
            str(n),
            *options,
            *words,
            str(program),
            *map(str, arguments),
        ]
        full = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "python"),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        return subprocess.Popen(
            command, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    run.start = start
    return run
