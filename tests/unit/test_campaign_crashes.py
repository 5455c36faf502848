"""Kernels that break in a campaign, in every way but a signal: recorded, once, and it goes on.

Searches are real. Bookkeeping under faults of processes and disks is the part of
tests/unit/test_campaign_faults.py, a device that is lost of tests/gpu/test_campaigns.py.
"""

import pytest
from tests.unit.campaign_kernels import Campaign, campaign_over

# Each breaks as its name says where the launch holds more than one token.
TARGETS = """
import os
import resource
import signal

import torch


def healthy(x):
    return x + 1


def aborts(x):
    # As an assertion of CUDA ends a process, or the C library.
    if len(x) > 1:
        os.abort()
    return x + 1


def killed(x):
    # As a system does that runs out of memory.
    if len(x) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1


def swallows(x):
    if len(x) > 1:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as stream:
            held = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (64 << 20), hard))
        try:
            taken = []
            while True:
                taken.append(torch.ones(1 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    return x + 1


def complains(x):
    if len(x) > 1:
        raise MemoryError("no memory")
    return x + 1


def loses(x):
    # What torch raises of a device that is gone.
    if len(x) > 1:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    return x + 1


def starves(x):
    if len(x) > 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return x + 1
"""
MESSAGES = {
    "aborts": "SIGABRT",
    "killed": "SIGKILL",
    "swallows": "can't allocate memory",
    "complains": "MemoryError: no memory",
    "loses": "an illegal memory access was encountered",
}
QUIET = ("healthy", "starves")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """Return one campaign over all targets."""
    return campaign_over(tmp_path_factory.mktemp("crashes"), TARGETS, (*MESSAGES, *QUIET))


@pytest.mark.parametrize("name", MESSAGES)
def test_what_breaks_a_kernel_is_a_crash_with_its_words(campaign: Campaign, name: str) -> None:
    """Its cell crashes, and the finding says how: a signal, no memory, a device that is gone."""

    assert campaign.cell(name).verdict == "CRASHES"
    found = campaign.findings(name)
    assert found
    for cause in found:
        assert cause.fixture is not None
        assert MESSAGES[name] in cause.fixture.expect.message


def test_what_says_nothing_of_a_kernel_is_no_finding(campaign: Campaign) -> None:
    """A device without memory is no fault of a kernel: its cases are excluded, and counted so."""

    starves, healthy = campaign.cell("starves").sum, campaign.cell("healthy").sum
    assert not any(campaign.findings(name) for name in QUIET)
    assert campaign.cell("starves").verdict == "VACUOUS"
    assert starves.rejected == starves.examples > 0
    assert healthy.examples > 0
    assert not healthy.rejected


def test_no_process_of_the_campaign_is_lost_with_a_kernel(campaign: Campaign) -> None:
    """Kernels run in a child, which is replaced; whoever searches goes on and counts."""

    assert not any(event.kind == "lost" for event in campaign.events)
    assert not any(cell.sum.lost for cell in campaign.snapshot.cells)
    assert all(cell.sum.epochs for cell in campaign.snapshot.cells)
