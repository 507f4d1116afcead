"""Keeps torch.compile out of shoal's own functions.

While a compiled function runs, torch traces every Python function that starts, also those that
torch's C++ code calls: the methods of a process group, and hooks. Shoal's functions talk to the
agent, and there is nothing in them to compile.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, Callable, Dict, Iterator, Optional

try:
    from torch._C._dynamo import eval_frame
except ImportError:  # PyTorch 1 compiles nothing
    eval_frame = None  # type: ignore[assignment]


def skip_package(name: str) -> None:
    """Have torch.compile run the functions of a package, and what they call, as they are. What is
    compiled itself stays so where they call it. Only modules that are imported already: called at
    the end of the import of the package.
    """
    skip_code = _code_skipper()
    if skip_code is None:
        return
    for module in [m for n, m in sys.modules.items() if f"{n}.".startswith(f"{name}.")]:
        for function in _functions(module, vars(module)):
            # What torch.compiler.disable sets, for calls in a function that is traced; but that
            # imports the compiler, which takes seconds.
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            function._torchdynamo_disable_msg = "it talks to shoal's agent"  # type: ignore
            for code in _codes(function.__code__):
                skip_code(code)


def _code_skipper() -> Optional[Callable[[types.CodeType], None]]:
    """What has torch.compile leave a code object as it is, and what that calls; None = nothing."""
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        whole = eval_frame._FrameExecStrategy(skip, skip)
        return lambda code: eval_frame.set_code_exec_strategy(code, whole)
    return getattr(eval_frame, "skip_code", None)  # an older torch skips the code alone


def _functions(owner: Any, module_globals: Dict[str, Any]) -> Iterator[types.FunctionType]:
    """The functions of `owner`, a module or a class of it, that the module defines, those of its
    classes too. `module_globals` are the names of the module. Others are left out: what contextlib
    makes of a function has code that is everybody's.
    """
    for value in vars(owner).values():
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.FunctionType) and value.__globals__ is module_globals:
            yield value
        elif isinstance(value, type) and value.__module__ == module_globals["__name__"]:
            yield from _functions(value, module_globals)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
