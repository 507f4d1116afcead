"""The callbacks of the Trainer of transformers on workers that join, and what they are given."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch_world import main


class Counting(transformers.TrainerCallback):
    """A callback of a user, with a count."""

    def __init__(self, count):
        """Begin with a count."""
        self.count = count


def test_states_go_to_callbacks_of_the_same_class():
    """Also where rank 0 has one more, or the order is another one since it has resumed."""
    from shoal._trainers.callbacks import states_of, take_states

    def stopping(count):
        """A callback of transformers that has waited for so many evaluations."""
        made = transformers.EarlyStoppingCallback()
        made.early_stopping_patience_counter = count
        return made

    more = type("More", (transformers.TrainerCallback,), {})()
    states = states_of([more, Counting(1), Counting(2), stopping(3)])
    first, second, last = mine = [stopping(0), Counting(0), Counting(0)]
    take_states(mine, states)
    assert first.early_stopping_patience_counter == 3
    assert [second.count, last.count] == [1, 2]


if __name__ == "__main__":
    main(globals())
