from __future__ import annotations

import numpy as np
import pytest

from engine.random_numbers import philox, uniform

# The published known answers of Philox4x32-10: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_its_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], result: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (np.array([word], dtype=np.uint64) for word in counter)
    k0, k1 = (np.array([word], dtype=np.uint64) for word in key)
    assert tuple(int(word[0]) for word in philox((c0, c1, c2, c3), (k0, k1))) == result


def test_a_number_does_not_depend_on_the_rows_beside_it() -> None:
    seeds, choices, positions = [7, 2**63, 0, -1], [0, 1, 2, 3], [0, 5, 10**6, 8191]
    together = uniform(seeds, choices, positions)
    alone = [uniform([s], [c], [p])[0] for s, c, p in zip(seeds, choices, positions, strict=True)]
    assert together.tolist() == alone


def test_seed_choice_and_position_each_matter() -> None:
    rows = [(s, c, p) for s in (0, 1, 2**32, 2**63) for c in range(4) for p in range(64)]
    numbers = uniform(*zip(*rows, strict=True))
    assert len(set(numbers.tolist())) == len(rows)


def test_any_integer_is_a_seed() -> None:
    numbers = uniform([-1, 2**64 - 1, 2**64], [0, 0, 0], [0, 0, 0])
    assert numbers[0] == numbers[1]
    assert numbers[2] == uniform([0], [0], [0])[0]


def test_no_rows_give_no_numbers() -> None:
    assert uniform([], [], []).shape == (0,)


@pytest.mark.parametrize("varied", ["seed", "choice", "position"])
def test_numbers_are_uniform_and_uncorrelated_along_each_argument(varied: str) -> None:
    n = 1 << 16
    running, fixed = list(range(n)), [3] * n
    numbers = uniform(*(running if name == varied else fixed for name in ARGUMENTS))
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.bincount((numbers * 256).astype(int), minlength=256)
    chi_square = float(((counts - n / 256) ** 2 / (n / 256)).sum())
    # 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert 255 - 4 * 22.6 < chi_square < 255 + 4 * 22.6
    for lag in (1, 2, 7):
        correlation = np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(n)


ARGUMENTS = ("seed", "choice", "position")
