"""Power: every planted defect of a cache is found by random programs, and the healthy cache holds.

What a run tries says `tests/power/conftest.py`: a sixth of the defects with one seed, and at
profile nightly all of them with all seeds.
"""

import pytest
import torch
from tests.power.programs import Reach, judged, searched, shorter_failure
from tests.power.witnesses import WITNESSES

from biprop.judgment import Verdict
from biprop.kernels.planted import CACHES, PlantedCache

PROGRAMS = 300
SEEDS = (0, 1, 2, 3, 4)
# Up to here all shorter programs are tried in any run: there are some thousands of them.
SHORTEST_QUICK = 3
SHORTEST_WIDE = 4
SHORTEST = 2
PLANTED_COUNT_MIN = 15
# The last ones before a defect was found, in which the healthy cache is judged.
HEALTHY_PROGRAMS = 3

# Share of the findings of one seed that are minimised to the shortest program.
SHRUNK_SHARE_MIN = 0.9
# Those of which a run without much time minimises findings, which takes a second each.
SHRUNK_QUICKLY = [planted for planted in CACHES if planted.shortest == SHORTEST]


def is_nightly(config: pytest.Config) -> bool:
    """Tell whether there is time."""
    return bool(config.getoption("--biprop-profile") == "nightly")


def each(planted: tuple[PlantedCache, ...]) -> pytest.MarkDecorator:
    """Parametrise a test by planted caches."""
    return pytest.mark.parametrize(
        "planted", [pytest.param(cache, id=cache.name) for cache in planted]
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try each defect with every seed at profile nightly, else with the first."""
    if "seed" in metafunc.fixturenames:
        seeds = SEEDS if is_nightly(metafunc.config) else SEEDS[:1]
        metafunc.parametrize("seed", seeds)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start torch's generator anew: one planted cache draws from it."""
    torch.manual_seed(0)


def test_manifest_is_whole() -> None:
    """There are enough defects, each with a name, a sentence and a witness of its length."""
    names = [planted.name for planted in CACHES]

    assert len(names) == len(set(names)) >= PLANTED_COUNT_MIN
    assert sorted(names) == sorted(WITNESSES)
    for planted in CACHES:
        assert planted.mechanism.endswith(".")
        assert len(WITNESSES[planted.name].ops) == planted.shortest


@each(CACHES)
def test_witness_fails_with_the_defect_alone(planted: PlantedCache) -> None:
    """The last operation of the shortest program shows the defect; the healthy cache holds."""
    program = WITNESSES[planted.name]
    outcome = judged(planted, program)

    assert outcome.verdict == planted.verdict
    assert outcome.ops_run == planted.shortest
    assert outcome.cause is not None
    assert outcome.cause.check in planted.checks
    assert judged(planted, program, healthy=True).verdict is Verdict.HOLDS


@each(CACHES)
def test_no_shorter_program_fails(planted: PlantedCache, request: pytest.FixtureRequest) -> None:
    """All programs of fewer operations hold, in pages of one, two and four slots."""
    most = planted.shortest if is_nightly(request.config) else min(planted.shortest, SHORTEST_QUICK)
    # Of long programs there are too many to have a third sequence, or many counts, in them.
    reach = Reach(
        length=most - 1,
        sequences=3 if most <= SHORTEST_WIDE else 2,
        counts=(0, 1, 2, 3) if most <= SHORTEST_WIDE + 1 else (1,),
    )

    assert shorter_failure(planted, reach) is None


@each(CACHES)
def test_defect_is_found(planted: PlantedCache, seed: int) -> None:
    """Random programs show the defect, and the healthy cache holds in the same programs."""
    judge, report = searched(planted, seed=seed, count=PROGRAMS, shrinks=False)

    assert report.verdict == planted.verdict
    (finding,) = report.findings
    assert finding.fixture.expect.cause.check in planted.checks
    *others, failing = judge.programs[-HEALTHY_PROGRAMS:]
    assert judged(planted, failing, healthy=True).verdict is Verdict.HOLDS
    # Of these some have too few operations to compare anything.
    for program in others:
        assert not judged(planted, program, healthy=True).verdict.is_violation


def test_findings_shrink_to_the_shortest_program(seed: int, request: pytest.FixtureRequest) -> None:
    """What random programs find is minimised to as few operations as any program needs."""
    tried = CACHES if is_nightly(request.config) else SHRUNK_QUICKLY
    lengths = {}
    for planted in tried:
        _, report = searched(planted, seed=seed, count=PROGRAMS, shrinks=True)
        (finding,) = report.findings
        lengths[planted.name] = len(finding.fixture.program.ops) - planted.shortest
    shrunk = [name for name, excess in lengths.items() if excess == 0]

    assert min(lengths.values()) == 0
    assert len(shrunk) >= SHRUNK_SHARE_MIN * len(tried), lengths
