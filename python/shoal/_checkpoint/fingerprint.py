"""The fingerprint of a tensor, bit by bit as docs/formats/fingerprint.md has it. The same as the Go
package state/digest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, List, Sequence

if TYPE_CHECKING:
    import numpy

PRIME = (1 << 61) - 1
_WORDS = 2048  # words of a block, of 4 bytes each; a seed draws a weight for each
_BLOCK = 4 * _WORDS  # bytes of one turn of the weights
_MASK = (1 << 64) - 1
# A weight falls into three limbs. 16 bits of data times 21 of a limb, 4096 times, and 9 bits times
# 21, 8192 times, are exact in the 53 bits of a float64.
_LIMB = 21
_TURNS = 32  # blocks that are converted at once: they stay in the cache


class Key:
    """The weights that a seed draws. They are not changed after that, and the methods only compute:
    any thread may call them.
    """

    def __init__(self, seed: int) -> None:
        """Draw the weights by splitmix64. Needs NumPy."""
        self.seed = seed
        state = seed & _MASK

        def weight() -> int:
            """The next weight that the seed draws."""
            nonlocal state
            while True:
                state = (state + 0x9E3779B97F4A7C15) & _MASK
                z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
                z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
                drawn = (z ^ z >> 31) >> 3
                if drawn < PRIME - 1:
                    return drawn + 1

        words = [weight() for _ in range(_WORDS)]
        self._turn = weight()  # the weights of a block are this times those of the one before
        of_bytes = [(word << 8 * j) % PRIME for word in words for j in range(4)]
        # Limbs of the weights of the bytes of a block, and of the 16-bit halves of its words.
        self._bytes, self._halves = _split_into_limbs(of_bytes), _split_into_limbs(of_bytes[::2])
        self._ones = sum(of_bytes) % PRIME  # the sum of a whole block of zeros

    def weighted_sum(self, start: int, data: "numpy.ndarray[Any, Any]") -> int:
        """What a run of bytes of a tensor (uint8), of which the first is byte `start` of the
        tensor, adds to its fingerprint.
        """
        import numpy

        block, inside = divmod(start, _BLOCK)
        total, at = 0, 0
        factor = pow(self._turn, block, PRIME)
        if inside:
            at = min(_BLOCK - inside, len(data))
            total, factor = (
                self._sum_within_block(inside, data[:at]) * factor,
                factor * self._turn % PRIME,
            )
        whole = (len(data) - at) // _BLOCK
        halves = data[at : at + whole * _BLOCK].view("<u2").reshape(whole, _BLOCK // 2)
        room = numpy.empty((min(_TURNS, whole), _BLOCK // 2))
        for first in range(0, whole, _TURNS):
            some = halves[first : first + _TURNS]
            numpy.copyto(room[: len(some)], some)
            limbs = [
                numpy.einsum("ij,j->i", room[: len(some)], limb).tolist() for limb in self._halves
            ]
            for parts in zip(*limbs):
                total = (total + (_join_limbs(parts) + self._ones) * factor) % PRIME
                factor = factor * self._turn % PRIME
        return (total + self._sum_within_block(0, data[at + whole * _BLOCK :]) * factor) % PRIME

    def _sum_within_block(self, inside: int, data: "numpy.ndarray[Any, Any]") -> int:
        """The sum modulo PRIME of bytes that lie within one block, from byte `inside` of it on,
        each plus 1 and times its weight.
        """
        values = data.astype("float64") + 1
        return _join_limbs(
            [float(values @ limb[inside : inside + len(data)]) for limb in self._bytes]
        )

    def state_term(self, name: str, dtype: str, shape: Sequence[int], total: int) -> int:
        """What a tensor with the fingerprint `total` adds to the fingerprint of the whole state.
        The name has nothing in it that Go would quote.
        """
        dims = ",".join(map(str, shape))
        text = f'{self.seed:016x} "{name}" {dtype} [{dims}]'
        return (
            int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
            % PRIME
            * total
            % PRIME
        )


def format_fingerprint(total: int, nbytes: int) -> str:
    """A fingerprint of nbytes as manifests have it: 16 hexadecimal digits, a slash, the bytes."""
    return f"{total:016x}/{nbytes}"


def _split_into_limbs(weights: List[int]) -> List[Any]:
    """The three limbs of each weight, each limb as an array of float64."""
    import numpy

    return [
        numpy.array([w >> i * _LIMB & (1 << _LIMB) - 1 for w in weights], "float64")
        for i in range(3)
    ]


def _join_limbs(parts: Sequence[float]) -> int:
    """The number modulo PRIME whose three limbs these are; a limb may be larger than _LIMB bits."""
    return sum(int(part) << i * _LIMB for i, part in enumerate(parts)) % PRIME
