"""Profiles: how many examples a lane gets, what HOLDS needs, and complete Hypothesis settings.

Hypothesis starts from a profile of its own where `CI` is in the environment, and a setting that is
left out inherits from it; so every setting is written out here.
"""

from typing import Literal

import attrs
from attrs.validators import ge
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from biprop.generation import LIMITS, Lane, Limits

__all__ = [
    "PROFILES",
    "Profile",
    "ProfileName",
    "register_profiles",
    "search_settings",
    "strategy_settings",
]

ProfileName = Literal["dev", "pr", "nightly"]


@attrs.frozen(kw_only=True)
class Profile:
    """How thorough a run is.

    Attributes:
        name: `dev`, `pr` or `nightly`.
        examples: Of one cell on a device.
        examples_interpreted: Of one cell in Triton's interpreter.
        examples_against: Of each relation A and P of one cell, on conditioned data, on a device.
        examples_against_interpreted: Likewise in the interpreter.
        powered_min: Powered examples of each class that HOLDS needs, on a device.
        powered_min_interpreted: Likewise in the interpreter.
        layouts: Cases of relation I that differ in their layout alone and are judged together.
        layouts_gpu: Likewise on a GPU, where making a case ready takes longer than its launches.
        derandomized: Whether every run draws the same cases.
        minimise_runs: Cases that minimising one finding may judge.
        minimise_seconds: Seconds that it may take.
    """

    name: ProfileName
    examples: int
    examples_interpreted: int
    examples_against: int = 20
    examples_against_interpreted: int = 2
    powered_min: int = 5
    powered_min_interpreted: int = 1
    layouts: int = attrs.field(default=1, validator=ge(1))
    layouts_gpu: int = attrs.field(default=1, validator=ge(1))
    derandomized: bool = False
    minimise_runs: int = 2000
    minimise_seconds: float = 60.0

    def examples_of(self, lane: Lane) -> int:
        """Return how many examples a cell of a lane gets."""
        return self.examples_interpreted if lane == "interpreter" else self.examples

    def examples_against_of(self, lane: Lane) -> int:
        """Return how many examples of a relation A or P a cell of a lane gets."""
        if lane == "interpreter":
            return self.examples_against_interpreted
        return self.examples_against

    def powered_min_of(self, lane: Lane) -> int:
        """Return how many powered examples of a class HOLDS needs in a lane."""
        return self.powered_min_interpreted if lane == "interpreter" else self.powered_min

    def layouts_of(self, lane: Lane) -> int:
        """Return how many layouts a set of a lane has."""
        return self.layouts_gpu if lane.startswith("gpu") else self.layouts

    def is_ahead_in(self, lane: Lane) -> bool:
        """Say whether the next set of a lane is drawn while the one before it is judged.

        Elsewhere than on a GPU both would want the same cores, and what is drawn would lag behind
        what was seen for nothing.
        """
        return lane.startswith("gpu")

    def limits_of(self, lane: Lane) -> Limits:
        """Return how large the cases of a lane may be."""
        nightly: dict[Lane, Lane] = {
            "cpu": "nightly",
            "gpu": "gpu-nightly",
            "gpu-target": "gpu-nightly",
        }
        return LIMITS[nightly.get(lane, lane) if self.name == "nightly" else lane]


PROFILES: dict[ProfileName, Profile] = {
    "dev": Profile(name="dev", examples=60, examples_interpreted=8),
    "pr": Profile(
        name="pr",
        examples=40,
        examples_interpreted=8,
        examples_against=10,
        layouts_gpu=2,
        derandomized=True,
    ),
    "nightly": Profile(
        name="nightly",
        examples=5000,
        examples_interpreted=500,
        examples_against=400,
        examples_against_interpreted=120,
        powered_min=50,
        powered_min_interpreted=50,
        layouts_gpu=4,
        minimise_runs=10_000,
        minimise_seconds=600.0,
    ),
}


def search_settings(example_count: int) -> settings:
    """Return settings for a search whose examples are seeds.

    A seed has no structure to shrink, so failures go through `biprop.minimize`; the durable record
    is the fixture, so there is no database.
    """
    return settings(
        max_examples=example_count,
        derandomize=False,
        database=None,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate,),
        stateful_step_count=50,
        report_multiple_bugs=False,
        # Drawing a seed is never slow; what a kernel takes is no fault of the strategy.
        suppress_health_check=tuple(HealthCheck),
        deadline=None,
        print_blob=False,
        backend="hypothesis",
    )


def strategy_settings(profile: Profile, *, storage: str) -> settings:
    """Return settings for people's own properties over the structured strategies.

    Args:
        profile: How many examples, and whether every run draws the same.
        storage: Folder of the example database; unused where `profile` is derandomized.
    """
    return settings(
        max_examples=profile.examples,
        derandomize=profile.derandomized,
        # The two exclude each other.
        database=None if profile.derandomized else DirectoryBasedExampleDatabase(storage),
        verbosity=Verbosity.normal,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
        stateful_step_count={"dev": 20, "pr": 30, "nightly": 60}[profile.name],
        report_multiple_bugs=True,
        suppress_health_check=(HealthCheck.too_slow,),
        deadline=None,
        print_blob=False,
        backend="hypothesis",
    )


def register_profiles(*, storage: str) -> None:
    """Make `biprop-dev`, `biprop-pr` and `biprop-nightly` known to Hypothesis; none is loaded."""
    for profile in PROFILES.values():
        settings.register_profile(
            f"biprop-{profile.name}", strategy_settings(profile, storage=storage)
        )
