"""Is another backend a yardstick? Only one that holds relation I itself.

Asked when two backends of an operator leave their tolerance, and not before: as long as they agree,
it does not matter. What it means for a search decides `biprop.strategies.search`.
"""

import attrs

from biprop.data.words import hash_words
from biprop.generation import Space
from biprop.relations import JudgeOptions
from biprop.strategies.seeded import case_of_seed
from biprop.supervision import Judge

__all__ = ["fault_of_yardstick"]

_EXAMPLES = 24


def fault_of_yardstick(judge: Judge, space: Space, backend: str, *, seed: int) -> str:
    """Return why parity with a backend says nothing; empty where that backend holds relation I.

    Args:
        judge: Of the kernel that is held against it.
        space: Of that kernel; the other backend has the same signature.
        backend: The other one.
        seed: The same seed draws the same cases.

    Raises:
        BipropError: The backend cannot be found or run.
    """
    drawn = attrs.evolve(space, only=None, excluded=())
    other = judge.relative(backend)
    try:
        for index in range(_EXAMPLES):
            words = (hash_words(half, seed & 0xFFFFFFFF, index) for half in ("left", "right"))
            case = case_of_seed(next(words) << 32 | next(words), drawn)
            outcome = other.judge(case, JudgeOptions(measure=False))
            if outcome.verdict.is_violation:
                return f"backend {backend} is no yardstick, since relation I fails for it"
    finally:
        other.close()
    return ""
