"""Lower one whole number: bisection, landmarks, residues and near values.

Bisection alone is trapped by conditions such as `n % 16 == 0`; landmarks and residues leave such
traps. What the number means does not matter here.
"""

from collections.abc import Callable, Iterable

__all__ = ["LANDMARKS", "descend", "landmarks_with"]

_STEPS = (256, 128, 64, 48, 32, 16, 8, 4, 2)
_NEAR = 24
_POWERS = range(14)
LANDMARKS = tuple(
    sorted(
        {
            *range(10),
            *(max(0, (1 << power) + delta) for power in _POWERS for delta in (-1, 0, 1)),
            *(max(0, 3 * (1 << power >> 1) + delta) for power in _POWERS for delta in (-1, 0, 1)),
        }
    )
)


def landmarks_with(constants: Iterable[int]) -> tuple[int, ...]:
    """Return the landmarks with `constants` of the target and their neighbours."""
    mined = {constant + delta for constant in constants for delta in (-1, 0, 1)}
    return tuple(sorted({*LANDMARKS, *(value for value in mined if value >= 0)}))


def descend(
    put: Callable[[int], bool],
    *,
    value: int,
    low: int,
    landmarks: tuple[int, ...] = (),
) -> int:
    """Return the smallest value that was reached from `value`, at least `low`.

    Args:
        put: Tries a value; True where it was taken.
        value: The present value, which is known to do.
        low: The smallest that makes sense.
        landmarks: Ascending. Empty: bisection only, which is enough for plain thresholds.
    """
    if value <= low:
        return value
    if put(low):
        return low
    value = _bisect(put, value=value, low=low)
    if not landmarks:
        return value
    for landmark in landmarks:
        if low < landmark < value and put(landmark):
            value = landmark
            break
    value = _by_residues(put, value=value, low=low)
    for near in range(max(low + 1, value - _NEAR), value):
        if put(near):
            return near
    return value


def _bisect(put: Callable[[int], bool], *, value: int, low: int) -> int:
    passing = low
    while value - passing > 1:
        middle = (value + passing) // 2
        if put(middle):
            value = middle
        else:
            passing = middle
    return value


def _by_residues(put: Callable[[int], bool], *, value: int, low: int) -> int:
    moved = True
    while moved:
        moved = False
        for step in _STEPS:
            if value - step > low and put(value - step):
                value -= step
                moved = True
                break
    return value
