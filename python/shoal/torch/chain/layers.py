"""The layers of a chain: how they are made, which tensors the state of their training has, and
where those lie on a mesh. What a chain cannot train is refused here.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import nn

from shoal._runtime.arguments import wrong_type
from shoal.errors import ShoalError

COUNT = "optimizer.steps"  # the tensor of the state that counts the steps of the optimizer
# Names of element types in layouts.
_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "bool",
}
Optimizers = Callable[[List[nn.Parameter]], torch.optim.Optimizer]


class StateEntry(NamedTuple):
    """What an optimizer keeps of a parameter under one key: a tensor, or a number of Python."""

    shape: Tuple[int, ...]
    dtype: torch.dtype
    number: Optional[type] = None  # int or float; None = a tensor

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return _nbytes(torch.Size(self.shape), self.dtype)


class Weight(NamedTuple):
    """A parameter of the whole model, and where it stands in its layer."""

    layer: int
    places: List[Tuple[nn.Module, str]]  # modules that have it, and under which name
    shape: torch.Size
    dtype: torch.dtype
    trained: bool

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return _nbytes(self.shape, self.dtype)

    def put(self, parameter: nn.Parameter) -> None:
        """Have the modules use this parameter."""
        for module, key in self.places:
            module._parameters[key] = parameter

    def without_memory(self) -> nn.Parameter:
        """A parameter of this kind on torch's meta device, which has no elements."""
        memory = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return nn.Parameter(memory, requires_grad=self.trained)


class Layers:
    """All layers of a chain, whose parameters have no memory until a stage gives them some. A
    process has them once, and the thread of the training loop uses them.
    """

    def __init__(
        self, make: Callable[[], Iterable[nn.Module]], optimizer: Optimizers, seed: int = 0
    ) -> None:
        """Make the layers by what a program gave to chain. Raises ShoalError for a model that a
        chain cannot train, with the path of the module, and TypeError for what is no model.
        """
        self._make, self._optimizer, self._seed = make, optimizer, seed
        self.modules = _without_memory(make, seed)
        if not self.modules:
            raise ShoalError("the function gave no layers: a chain has one at least")
        for number, module in enumerate(self.modules):
            _refuse_batch_statistics(number, module)
            for name, buffer in module.named_buffers():
                refuse_device(buffer, f"layers.{number}.{name}", "make the layers there")
        self.weights = _weights_of(self.modules)
        # What the optimizer keeps of each parameter that is trained, by the names of both.
        self.state_entries = _probe_state(
            optimizer, {n: w for n, w in self.weights.items() if w.trained}
        )

    def __len__(self) -> int:
        """The number of layers."""
        return len(self.modules)

    def describe(self, number: int) -> str:
        """A layer for people: its path and its class."""
        return f"layers.{number} ({type(self.modules[number]).__name__})"

    def catalogue(self) -> List[Dict[str, Any]]:
        """The logical tensors of the state, whole, as shoal.train takes them."""
        listed = [_catalogue_entry(name, w.dtype, w.shape) for name, w in self.weights.items()]
        for name, kept in self.state_entries.items():
            listed += [
                _catalogue_entry(state_name(k, name), x.dtype, x.shape) for k, x in kept.items()
            ]
        return [*listed, _catalogue_entry(COUNT, torch.int64, ())]

    def layout(self) -> Dict[str, Any]:
        """Where the tensors of `catalogue` lie on a mesh: a layer with all of its state on one
        stage.
        """
        spread = f"pp=spread(1,{len(self)},contiguous)"
        rules = [{"match": "**layers.#.**", "place": spread}, {"match": COUNT}]
        return {"shoal": "layout/1", "mesh": "dp=1,pp=1", "rules": rules}

    def initial_layers(self) -> Iterator[Tuple[int, nn.Module]]:
        """The layers with their values at the start of training, each with its number. A layer is
        in memory until the next one is asked for, where the function makes one at a time.
        """
        return enumerate(_make_layers(self._make, self._seed))


def _nbytes(shape: torch.Size, dtype: torch.dtype) -> int:
    """The bytes of a tensor."""
    return shape.numel() * torch.empty((), dtype=dtype).element_size()


def state_name(key: str, parameter: str) -> str:
    """The name of what an optimizer keeps of a parameter under a key."""
    return f"optimizer.{key}.{parameter}"


def parameters_in(number: int, module: nn.Module) -> Iterator[Tuple[str, nn.Module, str]]:
    """The names of the parameters of a layer in the whole model, each with the module that has it
    and its name there. One that several modules have comes several times.
    """
    for path, inner in module.named_modules(prefix=f"layers.{number}", remove_duplicate=False):
        for key, parameter in inner._parameters.items():
            if parameter is not None:
                yield f"{path}.{key}", inner, key


def _catalogue_entry(name: str, dtype: torch.dtype, shape: Iterable[int]) -> Dict[str, Any]:
    """An entry of a catalogue. Raises ShoalError for elements that shoal cannot keep."""
    if dtype not in _DTYPES:
        known = ", ".join(str(d) for d in _DTYPES)
        raise ShoalError(f"{name} has elements of {dtype}; the state of a job has {known}")
    return {"name": name, "dtype": _DTYPES[dtype], "shape": list(shape)}


def _make_layers(make: Callable[[], Iterable[nn.Module]], seed: int) -> Iterator[nn.Module]:
    """Make the layers, one after the other. torch's generator on the CPU has a seed of its own for
    each, as far as the function makes them one at a time, and else one for all. So the values are
    the same in all processes. Afterwards it is as it was.
    """
    before = torch.get_rng_state()
    try:
        layers: Iterator[Any] = iter(())
        for number in itertools.count():
            torch.default_generator.manual_seed(zlib.crc32(f"{seed}.layers.{number}".encode()))
            if number == 0:
                found = make()
                if not isinstance(found, Iterable):
                    raise wrong_type("layers()", found, "a list of torch.nn.Module")
                layers = iter(found)
            module = next(layers, None)
            if module is None:
                return
            if not isinstance(module, nn.Module):
                raise wrong_type(f"layer {number}", module, "a torch.nn.Module")
            yield module
    finally:
        torch.set_rng_state(before)


def _without_memory(make: Callable[[], Iterable[nn.Module]], seed: int) -> List[nn.Module]:
    """The layers with parameters on torch's meta device; their buffers have values. Parameters are
    made there, but for models that need the values meanwhile.
    """
    try:
        with _parameters_without_memory():
            modules = list(_make_layers(make, seed))
        if not any(b.is_meta for m in modules for b in m.buffers()):
            return modules
    except Exception:  # whatever it is, it comes again below unless the meta device was the reason
        pass
    modules = []
    for module in _make_layers(make, seed):
        known: Dict[int, nn.Parameter] = {}
        for inner in module.modules():
            for key, parameter in inner._parameters.items():
                if parameter is not None and not parameter.is_meta:
                    inner._parameters[key] = known.setdefault(id(parameter), _to_meta(parameter))
        modules.append(module)
    return modules


@contextlib.contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """A block in which modules put the parameters that they register on torch's meta device. What
    is computed there takes no time. The block is for one thread, and changes torch for all.
    """
    plain = nn.Module.register_parameter
    # Parameters that have become others, by id: weakly, and what they have become. Thus a parameter
    # of two modules stays one.
    become: Dict[int, Tuple["weakref.ref[nn.Parameter]", nn.Parameter]] = {}

    def register(module: nn.Module, name: str, parameter: Optional[nn.Parameter]) -> None:
        """As register_parameter of torch, which checks the name and the parameter."""
        plain(module, name, parameter)
        if parameter is None or parameter.is_meta:
            return
        known = become.get(id(parameter))
        if known is None or known[0]() is not parameter:
            known = become[id(parameter)] = weakref.ref(parameter), _to_meta(parameter)
        module._parameters[name] = known[1]

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = plain


def _to_meta(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter of the same kind without memory. Raises ShoalError for one without a shape, and
    for one on a GPU.
    """
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ShoalError(
            "a layer has parameters that get their shape with the first input, as LazyLinear has:"
            " give it the shape, as nn.Linear(64, 64)"
        )
    refuse_device(parameter, "a parameter of a layer", "make the layers there")
    return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)


def refuse_device(tensor: torch.Tensor, name: str, instead: str) -> None:
    """Raise ShoalError for a tensor on a GPU, with its name and what to do instead."""
    if not tensor.is_cpu and not tensor.is_meta:
        raise ShoalError(
            f"{name} is on {tensor.device}: a chain trains with tensors on the CPU, so {instead}."
            " shoal.torch.ddp trains with tensors on GPUs, each worker with the whole model"
        )


def _refuse_batch_statistics(number: int, module: nn.Module) -> None:
    """Raise ShoalError where a layer has a batch norm, or another module of torch's that tracks
    statistics of batches. What else computes over the samples of a batch is not found.
    """
    for path, inner in module.named_modules(prefix=f"layers.{number}"):
        batch = isinstance(inner, nn.modules.batchnorm._BatchNorm)
        if batch or getattr(inner, "track_running_stats", False):
            raise ShoalError(
                f"{path} is a {type(inner).__name__}, which takes statistics over the samples of a"
                " micro-batch: the losses would depend on the mesh. Use LayerNorm or GroupNorm,"
                " or train with shoal.torch.ddp"
            )


def _weights_of(modules: List[nn.Module]) -> Dict[str, Weight]:
    """The parameters of all layers by name. Raises ShoalError for one that two layers have."""
    weights: Dict[str, Weight] = {}
    names: Dict[int, str] = {}
    for number, module in enumerate(modules):
        for name, inner, key in parameters_in(number, module):
            parameter = inner._parameters[key]
            first = names.setdefault(id(parameter), name)
            if first == name:
                shape, trained = parameter.shape, parameter.requires_grad
                weights[name] = Weight(number, [], shape, parameter.dtype, trained)
            elif weights[first].layer != number:
                raise ShoalError(
                    f"{name} and {first} are one parameter, in two layers that may be on different"
                    " workers: give each layer a parameter of its own"
                )
            weights[first].places.append((inner, key))
    return weights


def _probe_state(make: Optimizers, weights: Dict[str, Weight]) -> Dict[str, Dict[str, StateEntry]]:
    """What an optimizer keeps of each of these parameters after a step, by the names of both: on
    torch's meta device, or for those that cannot work there on zeros, one parameter of a kind
    after the other. Raises ShoalError for an optimizer whose state cannot be kept.
    """
    if not weights:
        return {}
    try:
        found = _state_after_a_step(make, [w.without_memory() for w in weights.values()])
    except ShoalError:
        raise
    except Exception:  # again below, unless the meta device was the reason
        kinds: Dict[Any, Dict[str, StateEntry]] = {}
        for w in weights.values():
            if (w.shape, w.dtype) not in kinds:
                zeros = nn.Parameter(torch.zeros(w.shape, dtype=w.dtype))
                kinds[w.shape, w.dtype] = _state_after_a_step(make, [zeros])[0]
        found = [kinds[w.shape, w.dtype] for w in weights.values()]
    return dict(zip(weights, found))


def _state_after_a_step(
    make: Optimizers, parameters: List[nn.Parameter]
) -> List[Dict[str, StateEntry]]:
    """What an optimizer keeps of each of these parameters after its first step, by key."""
    optimizer = make(list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise wrong_type("optimizer(parameters)", optimizer, "an optimizer of torch.optim")
    name, before = type(optimizer).__name__, _hyperparameters(optimizer)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except TypeError as err:
        if "closure" not in str(err):
            raise
        raise ShoalError(
            f"{name} looks at the loss more than once a step, by step(closure), and a step of a"
            " chain takes one look: use another optimizer"
        ) from None
    after = _hyperparameters(optimizer)
    changed = [k for a, b in zip(before, after) for k in b if a.get(k) != b[k]]
    if changed:
        raise ShoalError(
            f"{name} changes {changed[0]!r} of its groups in each step, which is no state of a"
            " parameter and would be lost when the mesh changes: use another optimizer"
        )
    return [
        {
            key: kept
            for key, x in optimizer.state.get(p, {}).items()
            for kept in _state_entries(name, key, x)
        }
        for p in parameters
    ]


def _hyperparameters(optimizer: torch.optim.Optimizer) -> List[Dict[str, Any]]:
    """The settings of each group of an optimizer, without tensors."""
    return [
        {k: v for k, v in group.items() if isinstance(v, (int, float, str))}
        for group in optimizer.param_groups
    ]


def _state_entries(optimizer: str, key: str, value: Any) -> List[StateEntry]:
    """What is to be kept of a value of an optimizer's state: one thing, or none. Raises ShoalError
    for what is neither a tensor nor a number.
    """
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [StateEntry(tuple(value.shape), value.dtype)]
    if type(value) in (int, float):
        return [StateEntry((), torch.int64 if type(value) is int else torch.float64, type(value))]
    raise ShoalError(
        f"{optimizer} keeps {key!r} as a {type(value).__name__}, which is neither a tensor nor a"
        " number: use another optimizer"
    )
