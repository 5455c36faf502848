"""How thoroughly a case is judged.

A record only: `biprop.relations.invariance` obeys it, `biprop.supervision` carries it to another
process.
"""

import math

import attrs
from attrs.validators import ge, gt, le, optional

__all__ = ["JUDGE_OPTIONS", "JudgeOptions"]

# Chance left that repeats show nothing although the rate of differing runs is the one that is
# known.
_CHANCE_OF_MISSING = 0.01


@attrs.frozen(kw_only=True)
class JudgeOptions:
    """What is asked of one judgement.

    Attributes:
        repeat_canonical: Run the canonical side twice even where the two sides agree.
        repeats_min: Runs of each side after a mismatch, the first included. Of targets that differ
            from run to run, one that tosses a coin is the hardest to tell from one that drifts:
            with 5 runs a side it passes for drifting in 1 mismatch of 256.
        repeats_max: Runs of each side at most.
        rate: Share of differing runs known from before (replay, shrinking of a NONDETERMINISTIC
            case); given, both sides are repeated even where they agree.
        measure: Whether power and the evidence of the classes are measured. Without, equal bits are
            HOLDS although they may be no evidence.
        fresh: Judge again even if the case has a verdict in this process.
        careful: Wait for the device after each run, so that an error of the device belongs to the
            run that caused it; else both runs are waited for at once.
    """

    repeat_canonical: bool = False
    repeats_min: int = attrs.field(default=5, validator=ge(3))
    repeats_max: int = attrs.field(default=200, validator=ge(3))
    rate: float | None = attrs.field(default=None, validator=optional([gt(0.0), le(1.0)]))
    measure: bool = True
    fresh: bool = False
    careful: bool = False

    @property
    def repeats(self) -> int:
        """Runs of each side that a verdict rests on after a mismatch, the first included."""
        needed = self.repeats_min
        if self.rate is not None and self.rate < 1:
            known = math.ceil(math.log(_CHANCE_OF_MISSING) / math.log(1 - self.rate))
            needed = max(needed, known)
        return min(needed, self.repeats_max)

    def covers(self, other: "JudgeOptions") -> bool:
        """Say whether an outcome judged under these options answers `other` too."""
        return (
            (self.repeat_canonical or self.rate is not None or not other.repeat_canonical)
            and (self.measure or not other.measure)
            and (other.rate is None or (self.rate is not None and self.repeats >= other.repeats))
        )


# What is asked where nothing is said.
JUDGE_OPTIONS = JudgeOptions()
