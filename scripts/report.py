"""What a run of the tests says of itself: the slowest tests, and what each room takes."""

import collections
import pathlib

SLOWEST = 10  # how many of the slowest tests are shown
BUDGETS = pathlib.Path(__file__).with_name("budgets.txt")


def show_costs(stages):
    """Print the slowest tests and the processor seconds of each room, of stages that have ended."""
    slow = sorted((pair for s in stages for pair in s.slow), reverse=True)[:SLOWEST]
    if slow:
        print(f"\nthe {len(slow)} slowest tests, in seconds on the wall")
        for seconds, test in slow:
            print(f"{seconds:8.1f}  {test}")
    rooms = room_seconds(stages)
    if rooms:
        print("\nprocessor seconds of the tests of each room, and its budget")
        for room, seconds in rooms.most_common():
            print(f"{seconds:8.1f} {budget(room):6.0f}  {room}")


def room_seconds(stages):
    """The processor seconds of the tests of each room, a Counter: those of the stage that takes
    most for it.
    """
    rooms = collections.Counter()
    for s in stages:
        if s.name in ("go", "race", "python"):
            rooms |= s.rooms
    return rooms


def budget(room):
    """The processor seconds that a room may take, read from budgets.txt."""
    limits = {}
    for line in BUDGETS.read_text().splitlines():
        if line and not line.startswith("#"):
            seconds, name = line.split(maxsplit=1)
            limits[name] = float(seconds)
    return limits.get(room, limits["*"])


def rooms_over_budget(stages):
    """The rooms that take more than their budget, each in a line of text; an empty list where none
    does.
    """
    return [
        f"the tests of {room} took {seconds:.0f} processor seconds, and may take {budget(room):.0f}"
        f" by {BUDGETS.name}"
        for room, seconds in sorted(room_seconds(stages).items())
        if seconds > budget(room)
    ]
