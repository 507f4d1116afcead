"""The stages of the tests, and which of them run side by side."""

import concurrent.futures
import time

from stage import RUNNING, Stage

STAGES = {}  # name -> function, in the order in which they begin
TIERS = {"quick": [], "test": [], "all": []}  # tier -> the names of its stages
AFTER = {}  # name -> whether an earlier stage must have ended before
SIDE_BY_SIDE = 2  # stages at a time: one alone keeps less than two processors busy


def stage(after, *tiers):
    """Make a function a stage of tiers. Its name is the stage's, its first line what --list shows.
    `after` says of an earlier stage whether it must have ended before.
    """

    def register(function):
        """Enter a function into the tables, and return it."""
        name = function.__name__.replace("_", "-")
        STAGES[name], AFTER[name] = function, after
        for tier in tiers:
            TIERS[tier].append(name)
        return function

    return register


def after_nothing(_):
    """For a stage that can begin at any time."""
    return False


def after_other_go(earlier):
    """For a stage that compiles Go: two at a time would compile the same things twice."""
    return AFTER[earlier] in (after_other_go, after_setup_and_other_go)


def after_setup_and_other_go(earlier):
    """For a stage that compiles Go and may start frameworks: they must be there first."""
    return earlier == "setup" or after_other_go(earlier)


def after_tools(earlier):
    """For a stage that needs the binary and the Python environment."""
    return earlier in ("build", "setup")


def after_everything(_):
    """For a stage that looks at what is left."""
    return True


def run_stage(name):
    """Run one stage in this thread until it has ended, print a line about it, and return it. What
    it raises counts as a failure of the stage.
    """
    s, start = Stage(name), time.monotonic()
    s.log.unlink(missing_ok=True)
    try:
        STAGES[name](s)
    except Exception as broken:  # a stage that cannot start must not hide the others
        s.failures.append(("the stage broke", repr(broken)))
    if not (s.passed or s.failures):
        s.failures.append(("nothing was tested", f"see {s.log}"))
    if RUNNING.stopped:  # then it says nothing that failures tell
        return s
    line = f"{name:14}{time.monotonic() - start:7.1f} s {s.busy:7.1f} s of processors"
    line += f"  {s.passed:5} passed"
    print(
        line
        + f"  {len(s.failures)} failed" * bool(s.failures)
        + f"  {s.skipped} skipped" * bool(s.skipped),
        flush=True,
    )
    return s


def run_all(names):
    """Run stages on threads side by side, each when those that it comes after have ended; wait for
    all, and return them in the order of their ends. An interrupt ends them, and is raised again.
    """
    waiting, under_way, ended = list(names), {}, []
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        try:
            while waiting or under_way:
                for name in waiting:
                    earlier = [*under_way.values(), *waiting[: waiting.index(name)]]
                    if len(under_way) < SIDE_BY_SIDE and not any(map(AFTER[name], earlier)):
                        waiting.remove(name)
                        under_way[pool.submit(run_stage, name)] = name
                        break
                else:
                    first = concurrent.futures.FIRST_COMPLETED
                    for future in concurrent.futures.wait(under_way, return_when=first).done:
                        del under_way[future]
                        ended.append(future.result())
        except BaseException:
            RUNNING.stop()
            raise
    return ended
