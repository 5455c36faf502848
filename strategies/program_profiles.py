"""How thoroughly programs for a KV cache are searched, by profile and lane.

What a profile is for cases says `biprop.strategies.profiles`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from biprop.generation import Lane
from biprop.strategies.profiles import ProfileName

__all__ = ["PROGRAM_PROFILES", "ProgramProfile"]


@attrs.frozen(kw_only=True)
class ProgramProfile:
    """How thorough a search is.

    Attributes:
        programs: Of one cache in one layout, backend and dtype, on a device.
        programs_interpreted: Likewise in Triton's interpreter.
        coverage_share_min: Share of the programs that must reach each situation of `COVERAGE`.
        powered_min: Programs with power that HOLDS needs.
        minimise_runs: Programs that minimising one finding may judge.
        minimise_seconds: Seconds that it may take.
    """

    programs: int
    programs_interpreted: int
    coverage_share_min: float = 0.1
    powered_min: int = 1
    minimise_runs: int = 600
    minimise_seconds: float = 30.0

    def programs_of(self, lane: Lane) -> int:
        """Return how many programs a lane gets."""
        return self.programs_interpreted if lane == "interpreter" else self.programs


PROGRAM_PROFILES: Mapping[ProfileName, ProgramProfile] = MappingProxyType(
    {
        "dev": ProgramProfile(programs=30, programs_interpreted=4),
        "pr": ProgramProfile(programs=60, programs_interpreted=6),
        "nightly": ProgramProfile(
            programs=1000,
            programs_interpreted=100,
            powered_min=20,
            minimise_runs=4000,
            minimise_seconds=300.0,
        ),
    }
)
