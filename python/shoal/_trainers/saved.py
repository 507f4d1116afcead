"""What the user's code puts into a checkpoint of Lightning, by on_save_checkpoint and by the state
of a datamodule, and where TensorBoard's files lie: a worker that joins gets it without a file.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Set, Tuple

import lightning
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden

import shoal
from shoal._live.object_collectives import pack, unpack
from shoal._runtime.log import log_line
from shoal.torch.state import mark_registered


def plain_checkpoint(trainer: Any) -> Dict[str, Any]:
    """What a checkpoint of Lightning has before the user's code sees it. The tensors are those of
    the training, not copies.
    """
    connector = trainer._checkpoint_connector
    return {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": lightning.__version__,
        "state_dict": connector._get_lightning_module_state_dict(),
        "loops": connector._get_loops_state_dict(),
        "callbacks": call._call_callbacks_state_dict(trainer),
        "optimizer_states": [trainer.strategy.optimizer_state(x) for x in trainer.optimizers],
        "lr_schedulers": [x.scheduler.state_dict() for x in trainer.lr_scheduler_configs],
    }


def leave_out_schedulers(job: "shoal.Job", trainer: Any) -> None:
    """Have a job whose model is registered not look for the schedulers that callbacks of this
    Trainer make while it trains. Their own state has these, and a worker that joins makes its own
    from it.
    """
    state, discover = job._state, job._state.discover

    def without_theirs() -> None:
        """As before, but for these schedulers."""
        for callback in trainer.callbacks:
            scheduler = getattr(callback, "_swa_scheduler", None)
            if isinstance(callback, StochasticWeightAveraging) and scheduler is not None:
                mark_registered(job, scheduler)
        discover()

    state.discover = without_theirs


class Saved:
    """What the code of the user adds to a checkpoint. Only the thread of the training loop uses it,
    between two steps.
    """

    def __init__(self, trainer: Any, joins: bool):
        """What is added to the checkpoints of this Trainer, whose fit has begun. It `joins`
        workers that train already, or else begins with them.
        """
        self._trainer, self._joins = trainer, joins
        self._told: Set[str] = set()  # the keys that cannot be sent, of which the user knows

    def state(self) -> Dict[str, Any]:
        """What the user's code adds now, packed, for `take` on another worker."""
        trainer, data = self._trainer, self._trainer.datamodule
        own = {} if data is None else call._call_lightning_datamodule_hook(trainer, "state_dict")
        plain, whole = self._checkpoints()
        # Numbers can be the same object by chance.
        names = {id(v): name for name, v in plain.items() if isinstance(v, (dict, list))}
        changed = {k: v for k, v in whole.items() if plain.get(k, whole) is not v}
        # The keys whose values the plain checkpoint has, under these names.
        same = {k: names[id(v)] for k, v in changed.items() if id(v) in names}
        found = {k: self._packed(k, v) for k, v in changed.items() if k not in same}
        data_state = self._packed("the state of the datamodule", own) if own else None
        # Which folder each logger for TensorBoard has, None = it has not looked, or is another one.
        versions = [
            logger._version if isinstance(logger, TensorBoardLogger) else None
            for logger in trainer.loggers
        ]
        return {"found": found, "same": same, "data": data_state, "versions": versions}

    def _checkpoints(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """A plain checkpoint, and what the user's code makes of it, both without a copy."""
        trainer = self._trainer
        saves = (trainer.lightning_module, *trainer.callbacks)
        plain = plain_checkpoint(trainer)
        whole = dict(plain)
        if any(is_overridden("on_save_checkpoint", x) for x in saves):
            call._call_callbacks_on_save_checkpoint(trainer, whole)
            call._call_lightning_module_hook(trainer, "on_save_checkpoint", whole)
        return plain, whole

    def _packed(self, name: str, value: Any) -> Optional[bytes]:
        """A value as bytes; None where it cannot go to another worker, of which the user is told
        once.
        """
        try:
            return pack(value, name)
        except TypeError as err:
            if name not in self._told:
                self._told.add(name)
                log_line(f"workers that join do not get what a checkpoint of Lightning has: {err}")
            return None

    def take(self, state: Dict[str, Any], loops: Any, callbacks: Any) -> None:
        """Give the user's code what `state` has returned elsewhere, and load the loops and the
        callbacks, of which these are the states there, as from a checkpoint. The model and the
        optimizers have their state already.
        """
        trainer, connector = self._trainer, self._trainer._checkpoint_connector
        # A job that goes on from its checkpoint begins a folder. Other loggers would remove files.
        for logger, version in zip(trainer.loggers, state["versions"] if self._joins else ()):
            if version is not None:
                logger._version = version
        # What could not be sent is that of this worker.
        plain, checkpoint = self._checkpoints()
        checkpoint.update({key: plain[name] for key, name in state["same"].items()})
        found = {key: unpack(value) for key, value in state["found"].items() if value is not None}
        checkpoint.update(found, loops=loops, callbacks=callbacks)
        if state["data"] is not None and trainer.datamodule is not None:
            call._call_lightning_datamodule_hook(trainer, "load_state_dict", unpack(state["data"]))
        if state["found"] or state["same"]:
            call._call_lightning_module_hook(trainer, "on_load_checkpoint", checkpoint)
        connector._loaded_checkpoint = checkpoint
        connector.restore_callbacks()
