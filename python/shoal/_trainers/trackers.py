"""The trackers of Accelerate, such as those for TensorBoard and wandb, on the worker that is rank
0, whichever that is.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import accelerate


class TrackedAccelerator(accelerate.Accelerator):
    """An Accelerator whose trackers begin on another worker where the one that has them is lost.
    The thread of the training loop uses it; nothing waits for other workers.
    """

    # Begins the trackers, when this worker is rank 0; None = they have begun, or there are none.
    _begin: Optional[Callable[[], Any]] = None

    def init_trackers(self, *arguments: Any, **options: Any) -> None:
        """As Accelerate's own: rank 0 has trackers now, and a worker that becomes rank 0 when it
        logs or asks for one.
        """
        self._begin = functools.partial(super().init_trackers, *arguments, **options)
        self._begin_where_main()

    def get_tracker(self, *arguments: Any, **options: Any) -> Any:
        """As Accelerate's own."""
        self._begin_where_main()
        return super().get_tracker(*arguments, **options)

    def log(self, *arguments: Any, **options: Any) -> None:
        """As Accelerate's own."""
        self._begin_where_main()
        super().log(*arguments, **options)

    def _begin_where_main(self) -> None:
        """Begin the trackers where this worker is rank 0, and they have not begun."""
        if self._begin is not None and self.is_main_process:
            begin, self._begin = self._begin, None
            begin()
