"""Evidence made by hand, for tests of reading it and of making figures from it."""

import attrs
from ci.lanes.records import (
    CacheResult,
    CampaignResult,
    CampaignsEvidence,
    Cause,
    CellResult,
    CellsEvidence,
    ClassResult,
    FindingResult,
    FindingsEvidence,
    Power,
    ReplayResult,
    SpeedCell,
    SpeedsEvidence,
    TestCounts,
    TimedCell,
    TimesEvidence,
    totals_of,
)
from ci.lanes.runs import FORMAT, Device, Run, Versions
from tests.unit.sample_fixtures import sample

from biprop.fixtures.records import fixture_to_data

__all__ = ["CAMPAIGNS", "CELLS", "FINDINGS", "RUN", "SPEEDS", "TIMES"]

RUN = Run(
    date="2026-11-29",
    certifies=True,
    source_sha256="ab" * 32,
    device=Device(kind="cuda", name="A GPU", capability="9.0", driver="580.1", count=1),
    versions=Versions(
        biprop="0.1.0",
        python="3.12.3",
        torch="2.11.0",
        cuda="13.0",
        triton="3.6.0",
        hypothesis="6.170",
        numpy="2.5",
    ),
    commands=("pytest tests/props",),
    seconds=50.0,
    is_complete=True,
    is_met=True,
)
CELL = CellResult(
    id="logp-triton-float32-forward",
    operator="logp",
    target="logp/packed",
    backend="triton",
    actual_backend="triton",
    dtype="float32",
    direction="forward",
    verdict="HOLDS",
    causes=(),
    examples=1200,
    rejected=0,
    launches=9000,
    seconds=40.0,
    power=Power(kind="order", share=0.5),
    classes={"T1": ClassResult(examples=9, powered=8, vacuous=1, unpowered=0, reason="")},
    largest={"V": 151_936, "length": 7},
    wanted={"V": 151_936},
    message="",
)
CACHE = CacheResult(
    id="paged-HND-triton-bfloat16",
    cache="paged",
    layout="HND",
    backend="triton",
    actual_backend="triton",
    dtype="bfloat16",
    verdict="HOLDS",
    causes=(),
    programs=1000,
    ops=35_123,
    comparisons=80_456,
    coverage={"partial fork": 0.5},
    fixed={"short": "HOLDS", "real-256": "HOLDS"},
    powered=170,
    seconds=30.0,
    message="",
)
_TWO = (attrs.evolve(CELL, id="logp-triton-bfloat16-forward", dtype="bfloat16"), CELL)
CELLS = CellsEvidence(
    format=FORMAT,
    part="nightly",
    run=RUN,
    profile="nightly",
    seconds_max=60.0,
    powered_min=50,
    totals=totals_of(_TWO, registered=2, seconds=RUN.seconds),
    tests=TestCounts(),
    cells=_TWO,
    caches=(CACHE,),
)
FINDINGS = FindingsEvidence(
    format=FORMAT,
    part="findings",
    run=RUN,
    findings=(
        FindingResult(
            name="efficient-whole",
            claim="efficient SDPA holds",
            command="biprop check sdpa",
            verdict="HOLDS",
            exit_code=0,
            examples=100,
            launches=800,
            seconds=9.0,
            causes=(),
            missed=(),
        ),
        FindingResult(
            name="linear-rows",
            claim="linear drifts",
            command="biprop check linear",
            verdict="DRIFTS",
            exit_code=1,
            examples=60,
            launches=500,
            seconds=12.0,
            causes=(
                Cause(
                    verdict="DRIFTS",
                    output="out",
                    transforms=("T1",),
                    key="I-DRIFTS-forward-out-finite",
                    count=4,
                    replay=ReplayResult(command="biprop replay", status="FAILED", exit_code=1),
                    fixture=fixture_to_data(sample()),
                ),
            ),
            missed=(),
        ),
    ),
)
TIMES = TimesEvidence(
    format=FORMAT,
    part="times",
    run=RUN,
    times=(
        TimedCell(
            target="logp/packed",
            backend="triton",
            dtype="bfloat16",
            dims={"V": 151_936},
            tokens=256,
            examples=6,
            kernel_calls=3,
            seconds={"values": 0.0005, "launching": 0.001},
            device_microseconds={"values": 100, "arguments": 50, "launching": 300},
            materialising_to_launching=0.5,
            judged_seconds=0.0042,
        ),
    ),
)
SPEEDS = SpeedsEvidence(
    format=FORMAT,
    part="speeds",
    run=RUN,
    speeds=(
        SpeedCell(
            target="rms_norm/packed",
            dtype="bfloat16",
            direction="forward",
            dims={"H": 8192},
            tokens=4096,
            native="functional.rms_norm",
            seconds=0.0003,
            native_seconds=0.0002,
        ),
    ),
)
CAMPAIGNS = CampaignsEvidence(
    format=FORMAT,
    part="campaigns",
    run=RUN,
    campaigns=(
        CampaignResult(
            command="biprop fuzz --budget 120s --workers 2 --device cuda",
            workers=2,
            devices=1,
            seconds=121.5,
            cells=168,
            cells_seen=168,
            cells_over=0,
            epochs=190,
            examples=9_000,
            examples_a_second=74.07,
            compared_a_second=512.3,
            share_in_kernels=0.412,
            findings=0,
            lost=0,
            exit_code=0,
        ),
    ),
)
