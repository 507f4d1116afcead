"""What the Trainer of transformers is asked for and a job cannot do, said before it begins."""

from __future__ import annotations

import inspect
from typing import Any, Dict, Sequence, Tuple

import transformers

from shoal._runtime.log import log_line
from shoal._trainers import process
from shoal.torch.loader import is_map_style

# Methods of the Trainer that shoal.transformers overrides, and that not every version has.
_REQUIRED_METHODS = (
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "get_batch_samples",
)
# TrainingArguments that a job cannot follow, by name: why, and what to use in their place.
_UNSUPPORTED = {
    "deepspeed": "is DeepSpeed, which needs a fixed number of processes: leave it out, and for an"
    " optimizer that does not fit write a loop with shoal.torch.zero",
    "fsdp": "is FSDP, which needs a fixed number of processes: leave it out, and for an optimizer"
    " that does not fit write a loop with shoal.torch.zero",
    "parallelism_config": "cuts the model, and the Trainer of shoal has whole copies of it: leave"
    " it out; examples/gpt/mesh_gpt.py shows a model that is cut",
    "enable_jit_checkpoint": "has a worker that gets SIGTERM save for itself, and all of a job save"
    " together: leave it out; a job loses nothing with a worker",
    "auto_find_batch_size": "tries batches of several sizes, and a job has one: give"
    " per_device_train_batch_size, and gradient_accumulation_steps for what does not fit",
}


def find_arguments(
    bases: Sequence[type], arguments: Sequence[Any], options: Dict[str, Any]
) -> Tuple[Any, Any, Any]:
    """The `args`, the train_dataset and the optimizer among what is given to a Trainer of these
    classes, of which each __init__ with *arguments of any number hands them on to the next one;
    None = not given.
    """
    names: Sequence[str] = ()
    for base in bases:
        parameters = inspect.signature(vars(base).get("__init__", object.__init__)).parameters
        if all(x.kind is not x.VAR_POSITIONAL for x in parameters.values()):
            names = list(parameters)[1:]
            break
    given = {**dict(zip(names, arguments)), **options}
    optimizer = (given.get("optimizers") or (None,))[0]
    return given.get("args"), given.get("train_dataset"), optimizer


def check_arguments(args: Any, dataset: Any, optimizer: Any = None) -> None:
    """Raise RuntimeError, TypeError or ValueError where a job cannot train as the TrainingArguments
    `args` say, on the train_dataset `dataset`, or by an `optimizer`; None = the Trainer was given
    none. Sets `args.ignore_data_skip` to False, and says so in the log.
    """
    missing = [name for name in _REQUIRED_METHODS if not hasattr(transformers.Trainer, name)]
    if missing:
        raise RuntimeError(
            f"shoal does not know the Trainer of transformers {transformers.__version__}, which has"
            f" no {missing[0]}: install transformers 5.6 or newer (docs/guide/trainers.md)"
        )
    if dataset is not None and not is_map_style(dataset):
        raise TypeError(
            f"train_dataset is {type(dataset).__name__}, which is iterable or without a length:"
            " shoal deals out samples by their numbers. Make a dataset of it that has __len__ and"
            " __getitem__, as datasets.Dataset.from_generator does"
        )
    process.check_optimizer(optimizer)
    if args is None:
        return
    for name, instead in _UNSUPPORTED.items():
        if getattr(args, name, None):
            raise ValueError(f"TrainingArguments({name}=...) {instead}")
    if args.world_size > 1:
        raise RuntimeError(
            "TrainingArguments were made before shoal.transformers was imported, and take this"
            " worker for one of several processes: import it first"
        )
    optim = getattr(args.optim, "value", args.optim)
    if optim.endswith("layerwise") or optim in ("lomo", "adalomo"):
        raise ValueError(
            f"TrainingArguments(optim={optim!r}) makes its steps within the backward pass, before"
            " the gradients of the workers are averaged: use another one, such as"
            f" {'galore_adamw' if optim.endswith('layerwise') else 'adafactor'!r}"
        )
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise ValueError(
            f"train_sampling_strategy={args.train_sampling_strategy!r} orders the samples by their"
            ' lengths, and shoal deals them out by their numbers: use "random" or "sequential"'
        )
    if args.ignore_data_skip:
        args.ignore_data_skip = False
        log_line("ignore_data_skip is left out: the place in the data is found without reading it")
