"""Random numbers from a counter: a pure function of (seed, choice, position), the same everywhere.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC'11), in integer arithmetic only, so that every machine, worker and retry gets the same bits. The
seed is the key; position and choice are the counter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""32-bit words, each in a 64-bit element, so that products fit."""

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def uniform(
    seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each row, with 53 random bits, [n].

    Seeds count modulo 2^64, choices and positions modulo 2^32.
    """
    keys = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
    zeros = np.zeros(len(keys), dtype=np.uint64)
    counter = (_words(positions), _words(choices), zeros, zeros)
    first, second, _, _ = philox(counter, (keys & _LOW, keys >> _SHIFT))
    bits = ((first >> np.uint64(5)) << np.uint64(26)) | (second >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


def philox(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: four random words for each counter and key, all [n]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (right >> _SHIFT) ^ c1 ^ k0, right & _LOW
        c2, c3 = (left >> _SHIFT) ^ c3 ^ k1, left & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def _words(values: Sequence[int]) -> Words:
    return np.array([value & 0xFFFFFFFF for value in values], dtype=np.uint64)
