"""A device that is lost, or has no memory left, in a campaign: recorded, once, and it goes on."""

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


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Campaign:
    """Return one campaign over all targets."""
    name = str(request.config.getoption("--biprop-device"))
    device = name if ":" in name else f"cuda:{torch.cuda.device_count() - 1}"
    folder = tmp_path_factory.mktemp("lost")
    return campaign_over(folder, TARGETS, (*LOST, *QUIET), device=device)


@pytest.mark.parametrize("name", LOST)
def test_a_kernel_that_loses_the_device_crashes(campaign: Campaign, name: str) -> None:
    """Its case is a finding that says so, and none of its epochs is lost."""

    assert campaign.cell(name).verdict == "CRASHES"
    found = campaign.findings(name)
    assert found
    for cause in found:
        assert cause.fixture is not None
        assert "The device was lost in the " in cause.fixture.expect.message
        assert cause.fixture.provenance.device.startswith("cuda")
    assert not campaign.cell(name).sum.lost


def test_the_others_get_a_device_that_computes(campaign: Campaign) -> None:
    """Whatever was lost before, cells that had their turn later were judged there."""

    healthy = campaign.cell("healthy").sum
    assert healthy.examples > 0
    assert healthy.compared > 0
    assert not healthy.rejected
    assert not campaign.findings("healthy")


def test_a_device_without_memory_is_no_fault_of_a_kernel(campaign: Campaign) -> None:
    """Its cases are excluded, and counted so."""

    exhausts = campaign.cell("exhausts").sum
    assert exhausts.rejected == exhausts.examples > 0
    assert not campaign.findings("exhausts")
