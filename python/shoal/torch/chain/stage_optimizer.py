"""The optimizer of a stage, whose state lies in memory of the job."""

from __future__ import annotations

from typing import Callable, Dict, Mapping, Optional

import torch
from torch import nn

from shoal._runtime.arguments import wrong_type
from shoal.errors import ShoalError

from .layers import COUNT, Optimizers, StateEntry, state_name


class StageOptimizer:
    """Makes the steps of an optimizer, and keeps its state in given tensors, which others may read
    and write between two steps. The thread of the training loop uses it.
    """

    def __init__(
        self,
        make: Optimizers,
        parameters: Mapping[str, nn.Parameter],
        state_entries: Mapping[str, Mapping[str, StateEntry]],
        schedule: Optional[Callable[[int], float]],
    ) -> None:
        """Of the parameters of a stage by name; `state_entries` says what is kept of each. The
        tensors have no values until `reset` or `adopt`.
        """
        self._make, self._schedule = make, schedule
        self._parameters, self._state_entries = parameters, state_entries
        self._tensors = {
            state_name(key, name): torch.empty(x.shape, dtype=x.dtype)
            for name in parameters
            for key, x in state_entries[name].items()
        }
        self._count = torch.zeros((), dtype=torch.int64)
        self._bound = False  # the optimizer's state is in the tensors
        # torch's optimizer; None = the stage has nothing to train.
        self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> Optional[torch.optim.Optimizer]:
        """A new optimizer of torch, whose learning rates it notes, and which does not use the
        tensors yet; None where there are no parameters, which torch refuses.
        """
        made = self._make(list(self._parameters.values())) if self._parameters else None
        self._rates = [group.get("lr", 0.0) for group in made.param_groups] if made else []
        self._bound = False
        return made

    def tensors(self) -> Dict[str, torch.Tensor]:
        """The state by name."""
        return {**self._tensors, COUNT: self._count}

    def adopt(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep the state in these tensors from now on."""
        self._tensors = {name: tensors[name] for name in self._tensors}
        self._count = tensors[COUNT]
        self._bound = False

    def reset(self) -> None:
        """Set the state to what training begins with."""
        for x in self.tensors().values():
            x.zero_()

    def step(self) -> None:
        """Make a step with the gradients of the parameters. The first step of a training has
        nothing kept: the optimizer makes its state in it.
        """
        count = int(self._count)
        if count == 0 and self._bound:
            self.optimizer = self._new_optimizer()  # training began again
        if self.optimizer is not None:
            if count > 0:
                self._bind()
            if self._schedule is not None:
                given = self._schedule(count)
                try:
                    factor = float(given)
                except (TypeError, ValueError):
                    raise wrong_type(f"schedule({count})", given, "a number") from None
                for group, rate in zip(self.optimizer.param_groups, self._rates):
                    group["lr"] = rate * factor
            self.optimizer.step()
            self._store_state()
        self._count += 1

    def _bind(self) -> None:
        """Have the optimizer use the tensors. Its numbers are read of them each time."""
        for name, parameter in self._parameters.items():
            if not self._bound:
                self.optimizer.state[parameter] = {}
            state = self.optimizer.state[parameter]
            for key, entry in self._state_entries[name].items():
                tensor = self._tensors[state_name(key, name)]
                if entry.number is not None:
                    state[key] = entry.number(tensor.item())
                elif not self._bound:
                    state[key] = tensor
        self._bound = True

    def _store_state(self) -> None:
        """Take over into the tensors what the optimizer has made anew."""
        for name, parameter in self._parameters.items():
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                entry = self._state_entries[name].get(key)
                if entry is None:
                    if value is None:
                        continue
                    raise ShoalError(
                        f"{type(self.optimizer).__name__} keeps {key!r} of {name} after some steps,"
                        " which it did not after its first: a chain cannot train with it"
                    )
                tensor = self._tensors[state_name(key, name)]
                if entry.number is not None:
                    tensor.fill_(value)
                elif value is not tensor:
                    state[key] = tensor.copy_(value)
        self._bound = True
