"""A device that is lost, or has no memory left, in a campaign: recorded, once, and it goes on."""

from pathlib import Path

import pytest
import torch
from tests.unit.campaign_kernels import Campaign, campaign_over

# Each breaks as its name says where the launch holds more than one token.
TARGETS = """
import torch
import triton
import triton.language as tl


@triton.jit
def store_far(x, distance):
    tl.store(x + distance, 1.0)


@triton.jit
def load_far(x, y, distance):
    tl.store(y, tl.load(x + distance))


def healthy(x):
    return x + 1


def reads(x):
    if len(x) > 1:
        load_far[(1,)](x, torch.empty(1, device=x.device), 1 << 44)
    return x + 1


def writes(x):
    if len(x) > 1:
        store_far[(1,)](x, 1 << 44)
    return x + 1


def asserts(x):
    if len(x) > 1:
        x[torch.full((1,), 1 << 30, device=x.device)]
    return x + 1


def exhausts(x):
    if len(x) > 1:
        # Other processes use the device too, so it runs out of a share of its own.
        torch.cuda.set_per_process_memory_fraction(0.02, x.device)
        try:
            taken = []
            while True:
                taken.append(torch.empty(1 << 28, device=x.device))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, x.device)
    return x + 1
"""
LOST = ("reads", "writes", "asserts")
QUIET = ("healthy", "exhausts")


def test_a_lost_device_costs_its_case_alone(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One campaign over all: with a test a target, each process of a run would make it anew."""
    name = str(request.config.getoption("--biprop-device"))
    device = name if ":" in name else f"cuda:{torch.cuda.device_count() - 1}"
    campaign = campaign_over(tmp_path, TARGETS, (*LOST, *QUIET), device=device)

    for target in LOST:
        _check_lost(campaign, target)
    # Whatever was lost before, what had its turn later was judged on a device that computes.
    healthy = campaign.cell("healthy").sum
    assert healthy.examples > 0
    assert healthy.compared > 0
    assert not healthy.rejected
    assert not campaign.findings("healthy")
    # A device without memory is no fault of a kernel: its cases are excluded, and counted so.
    exhausts = campaign.cell("exhausts").sum
    assert exhausts.rejected == exhausts.examples > 0
    assert not campaign.findings("exhausts")


def _check_lost(campaign: Campaign, target: str) -> None:
    """Check that its case is a finding that says so, and that none of its epochs is lost."""
    assert campaign.cell(target).verdict == "CRASHES"
    found = campaign.findings(target)
    assert found
    for cause in found:
        assert cause.fixture is not None
        assert "The device was lost in the " in cause.fixture.expect.message
        assert cause.fixture.provenance.device.startswith("cuda")
    assert not campaign.cell(target).sum.lost
