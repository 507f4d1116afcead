"""Policies: functions of yours that decide how a job trains, while it does.

    # mine.py: shoal run -n 4 --auto --policy ./mine.py -- python3 train.py
    import shoal

    @shoal.policy(levers=["batch"])
    def when_noisy(o, state):
        if o.noise and o.noise.low > 2 * o.setting.batch:
            return shoal.change(
                batch=2 * o.setting.batch, because=f"the noise scale is {o.noise.scale:.0f}"
            )

A policy is asked where the job is led, every 10 steps, up to every 80 where nothing changes, and at
most four times a second. It gets an `Observation` and the state that it has returned last, decides
within 50 ms, and returns a `Change`, or None to leave things as they are. What it wants is
predicted, tried and measured like the changes of shoal's own policies, and taken back where it does
not help. A policy that fails three times in a row is not asked again; the job goes on in any case.

A policy runs in a process of its own (`_policy_program.py`), so what it imports costs the job
nothing. docs/formats/policy.md has the lines that this process and the launcher exchange.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

# The names of levers, and the type of the value of each.
LEVERS: Dict[str, type] = {
    "batch": int,
    "rate": float,
    "shares": list,
    "size": int,
    "save": int,
    "round": int,
    "sync": str,
}


@dataclasses.dataclass(frozen=True)
class Band:
    """An estimate: the true value lies from low to high in 80 of 100 cases."""

    low: float
    mid: float
    high: float


@dataclasses.dataclass(frozen=True)
class Noise:
    """The gradient noise scale (McCandlish et al. 2018), in samples: a batch far below it gains
    from being doubled, one far above it does not. With `above` it is `high` or more.
    """

    scale: float
    low: float
    high: float
    above: bool = False


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the job trains now. `number` counts changes, `batch` is the samples of a step over all
    workers, `rate` the factor of the learning rate (0: workers choose it by the batch), `shares`
    the work of each rank, compared with the others (empty: all have the same), `save` the steps
    between checkpoints (0: as the program says), `size` the members that are wanted, and `sync` how
    workers synchronise, such as "local", after `round` optimizer steps ("" and 1: the program
    averages gradients in every step).
    """

    number: int
    batch: int
    rate: float = 0.0
    shares: Tuple[int, ...] = ()
    save: int = 0
    size: int = 0
    round: int = 1
    sync: str = ""


@dataclasses.dataclass(frozen=True)
class Split:
    """Where the time of a step goes, in seconds a step; 0 = not known. `data` is waiting for
    samples, `exposed` waiting for the network while nothing is computed, `seconds` all of it, and
    `slack` has by rank how long the worker waits for the slowest one.
    """

    data: float = 0.0
    compute: float = 0.0
    exposed: float = 0.0
    optimizer: float = 0.0
    seconds: float = 0.0
    slack: Tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Machine:
    """How busy the machine of a host is. `usage` has parts from 0 to 1, such as `usage["cpu"]`, and
    bytes a second, and `levels` a digit for each resource; docs/formats/sense.md has both.
    """

    host: str
    levels: str
    usage: Dict[str, float]


@dataclasses.dataclass(frozen=True)
class Saves:
    """What checkpoints are, as means: `cost` is the seconds of training that one costs, `writing`
    those for which it is written.
    """

    cost: float
    writing: float


@dataclasses.dataclass(frozen=True)
class Observation:
    """What is known of the job. `step` counts commits, `epoch` complete epochs and `size` members;
    `seconds` is the time that the job was observed. `first_batch` is the batch that the program
    states. `batch_range` and `size_range` are what the batch and the members may be (None: closed),
    `rate` the samples a second (None: not measured), `noise` the gradient noise scale (None: not
    known), `saves` the checkpoints (None: not measured), and `machines` the machines of hosts that
    have told of theirs. `can_save` is whether the program leaves the steps between checkpoints to
    the job, and `can_sync` whether it leaves to it how workers synchronise.
    """

    step: int
    epoch: int
    size: int
    seconds: float
    setting: Setting
    first_batch: int
    split: Split
    batch_range: Optional[Tuple[int, int]] = None
    size_range: Optional[Tuple[int, int]] = None
    rate: Optional[Band] = None
    noise: Optional[Noise] = None
    machines: Tuple[Machine, ...] = ()
    saves: Optional[Saves] = None
    can_save: bool = False
    can_sync: bool = False


@dataclasses.dataclass(frozen=True)
class Change:
    """What a policy wants changed; see `change`."""

    values: Dict[str, Any]
    because: str
    state: Any = None


def change(because: str, state: Any = None, **values: Any) -> Change:
    """A change, for a policy to return: `change(batch=512, because="…")`. The values are of the
    levers that the policy has named: batch, rate, size (members), save (steps between checkpoints),
    shares (a list, one number a rank), sync (how workers synchronise, such as "local"), or round
    (optimizer steps from one commit to the next). `state` is what the policy is given next time;
    None = what it had. Raises ValueError for others, and without a reason.
    """
    if not because:
        raise ValueError("a change needs a reason: because=…, which people read")
    if not values:
        raise ValueError(f"change nothing by returning None; else give one of {', '.join(LEVERS)}")
    for name, value in values.items():
        if name not in LEVERS:
            raise ValueError(f"there is no lever {name!r}: there are {', '.join(LEVERS)}")
        kind = LEVERS[name]
        if kind is list:
            if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
                raise ValueError(f"{name}={value!r} is no list of whole numbers from 0 on")
            continue
        if kind is str:
            if not isinstance(value, str) or not value:
                raise ValueError(f'{name}={value!r} is no text, such as "local"')
            continue
        fits = isinstance(value, int) or kind is float and isinstance(value, float)
        if isinstance(value, bool) or not fits or not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} is no {kind.__name__} above 0")
    return Change(dict(values), because, state)


# A function that decides: Decide(observation, state) returns a Change or None.
Decide = Callable[[Observation, Any], Optional[Change]]


@dataclasses.dataclass(frozen=True)
class Policy:
    """A function that was decorated, its name and its levers."""

    name: str
    levers: List[str]
    decide: Decide


# The policies of the file that is served, in its order.
decorated: List[Policy] = []


def policy(*, levers: Sequence[str]) -> Callable[[Decide], Decide]:
    """Make a function a policy that decides about `levers`. A file has one policy. Raises
    ValueError for a lever that does not exist.
    """
    unknown = [name for name in levers if name not in LEVERS]
    if unknown or not levers or isinstance(levers, str):
        raise ValueError(f"levers={levers!r}: give a list of some of {', '.join(LEVERS)}")

    def add(decide: Decide) -> Decide:
        """Remember the function, and return it as it is."""
        decorated.append(Policy(decide.__name__, list(levers), decide))
        return decide

    return add


def parse_observation(fields: Dict[str, Any]) -> Observation:
    """The observation in a request, as docs/formats/policy.md has it."""
    fields = dict(fields)
    levers = fields.pop("levers")
    batch, size = levers.get("batch"), levers.get("size")
    saves = fields.pop("saves", None)
    split = {name.lower(): value for name, value in fields.pop("split").items()}
    split["slack"] = tuple(split.get("slack") or ())
    rate, noise = fields.pop("rate", None), fields.pop("noise", None)
    machines = tuple(Machine(**m) for m in fields.pop("machines", ()))
    setting = dict(fields.pop("setting"))
    setting["shares"] = tuple(setting.get("shares") or ())
    return Observation(
        setting=Setting(**setting),
        split=Split(**split),
        batch_range=(batch["from"], batch["to"]) if batch else None,
        size_range=(size["from"], size["to"]) if size else None,
        rate=Band(**rate) if rate else None,
        noise=Noise(**noise) if noise else None,
        machines=machines,
        saves=Saves(**saves) if saves else None,
        can_save=levers.get("save", False),
        can_sync=levers.get("sync", False),
        **fields,
    )


def answer(rule: Policy, request: Dict[str, Any]) -> Dict[str, Any]:
    """What a policy answers to a request, both as docs/formats/policy.md has them."""
    state = request["state"]
    wanted = rule.decide(parse_observation(request["observation"]), state)
    if wanted is None:
        return {"tick": request["tick"], "change": None, "because": "", "state": state}
    if not isinstance(wanted, Change):
        raise TypeError(
            f"{rule.name} returned {type(wanted).__name__}: return shoal.change(…) or None"
        )
    if not set(wanted.values) <= set(rule.levers):
        raise ValueError(
            f"{rule.name} decides about {', '.join(rule.levers)}, and changes"
            f" {', '.join(wanted.values)}"
        )
    return {
        "tick": request["tick"],
        "change": wanted.values,
        "because": wanted.because,
        "state": state if wanted.state is None else wanted.state,
    }
