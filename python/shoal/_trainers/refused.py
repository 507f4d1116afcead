"""What the Trainer of Lightning is asked for and a job cannot do, said before it begins."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)

# Callbacks that a job cannot follow: why, and what to use in their place.
_UNSUPPORTED = {
    BatchSizeFinder: "trains before the training, and a job of shoal trains once, with one batch:"
    " look for the size without shoal, and leave the callback and Tuner.scale_batch_size out",
    GradientAccumulationScheduler: "has steps of more and of less batches, and those of a job have"
    " as many samples from the beginning to the end: give the Trainer accumulate_grad_batches",
    LearningRateFinder: "trains before the training, and a job of shoal trains once: look for the"
    " rate without shoal, and leave the callback and Tuner.lr_find out",
}


def check_trainer(trainer: Any) -> None:
    """Raise ValueError where a job cannot train as a Trainer is told, whose fit begins."""
    if trainer.reload_dataloaders_every_n_epochs:
        raise ValueError(
            "reload_dataloaders_every_n_epochs gives each epoch samples of its own, and a job"
            " of shoal deals out one dataset: leave it out"
        )
    if not trainer.lightning_module.automatic_optimization:
        raise ValueError(
            "automatic_optimization = False has training_step make the backward passes, and"
            " shoal averages those that Lightning makes, one a batch: leave it out, or write"
            " the loop with shoal.torch"
        )
    for callback in trainer.callbacks:
        for kind, instead in _UNSUPPORTED.items():
            if isinstance(callback, kind):
                raise ValueError(f"{kind.__name__} {instead}")
        averages = isinstance(callback, StochasticWeightAveraging) and trainer.max_epochs != -1
        if averages and callback.pl_module_contains_batch_norm(trainer.lightning_module):
            raise ValueError(
                "StochasticWeightAveraging goes through the batches once more for the batch norms"
                " of the model, without backward passes, and a job makes its steps of all batches:"
                " average by the callback WeightAveraging, and call"
                " torch.optim.swa_utils.update_bn after the training"
            )
