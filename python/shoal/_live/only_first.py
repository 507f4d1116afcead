"""What one worker does for the whole job, such as writing its metrics, whoever that is."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

from ..world import World


class OnlyFirst:
    """Has the methods of an object that exists on one member only, the first one; see
    Job.only_first. The thread of the training loop uses it.
    """

    def __init__(self, job: World, factory: Callable[[], Any]) -> None:
        """Have `factory` make the object when one of its methods is called."""
        # Names that methods of the object do not have.
        self.__job, self.__factory = job, factory
        self.__made: Optional[Any] = None  # the object; None = not made, or this is another member

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of a name, which does nothing on the other members."""
        if name.startswith("__"):  # copies and pickles look for these
            raise AttributeError(name)
        return functools.partial(self.__call, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the object itself, where it is a function."""
        return self.__call("__call__", *arguments, **options)

    def __call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the object, which is made where it is not there. On the other members it
        returns None, and closes an object of theirs from before.
        """
        if not self.__job.first:
            before, self.__made = self.__made, None
            if before is not None and hasattr(before, "close"):
                before.close()
            return None
        if self.__made is None:
            self.__made = self.__factory()
        return getattr(self.__made, name)(*arguments, **options)
