"""A policy of your own: double the batch while the gradients are noisy.

    shoal policy test examples/auto/policy.py examples/auto/observations.txt
    shoal run -n 4 --auto --policy examples/auto/policy.py -- python3 train.py
"""

import shoal


@shoal.policy(levers=["batch"])
def when_noisy(o, state):
    """Double the batch where the noise scale is surely above twice the batch."""
    if o.noise is None or o.batch_range is None:
        return None
    batch = 2 * o.setting.batch
    if o.noise.low < batch or batch > o.batch_range[1]:
        return None
    return shoal.change(batch=batch, because=f"the noise scale is {o.noise.scale:.0f}")
