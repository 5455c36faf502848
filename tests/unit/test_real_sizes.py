"""Spaces held at sizes of real models: every registered operator has some, and cases reach them."""

import attrs
import pytest
from tests.unit.query_context_signatures import CONTEXT_SIGNATURES

from biprop.generation import LIMITS, Space, held_at, illegal_in, real_sizes
from biprop.operators import Kernel
from biprop.registry import build_registry
from biprop.signature import parse_restrictions, parse_signature
from biprop.strategies.seeded import case_of_seed
from biprop.strategies.tally import sizes_in

KERNELS = {
    kernel.target: kernel
    for kernel in build_registry().kernels()
    if kernel.declaration is not None and kernel.backend == "torch"
}


def space_of(kernel: Kernel, direction: str = "forward") -> Space:
    """Return what the nightly lane draws from on a GPU."""
    return Space(
        signature=kernel.signature,
        backward_signature=kernel.backward_signature,
        restrictions=kernel.restrictions,
        direction="forward" if direction == "forward" else "backward",
        registered=True,
        declaration=kernel.declaration,
        op_class=kernel.op_class,
        limits=LIMITS["gpu-nightly"],
    )


@pytest.mark.parametrize("target", sorted(KERNELS))
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_operator_reaches_its_real_sizes(target: str, direction: str) -> None:
    """Each case of a held space is legal, and has the size or more; numbers alone have none."""
    space = space_of(KERNELS[target], direction)

    reals = real_sizes(space)

    assert bool(reals) == bool(space.signature.free_dims)
    for real in reals:
        held = held_at(space, real)
        for seed in range(8):
            case = case_of_seed(seed, held)
            assert sizes_in(case)[real.name] >= real.size
            assert not illegal_in(space, case)


def test_sequences_have_a_context_of_four_thousand_tokens() -> None:
    """Where sequences stay whole, their length is one of the real sizes."""
    names = {
        target: [real.name for real in real_sizes(space_of(KERNELS[target]))] for target in KERNELS
    }

    assert "length" in names["attention/packed"]
    assert "length" in names["attention/padded"]
    assert "length" in names["rms_norm/padded"]
    assert "length" not in names["logp/packed"]


def test_restrictions_are_kept() -> None:
    """A size that the kernel does not take, or that no other size goes with, is left out."""
    signature = parse_signature("x[T,H,K] -> y[T,H,K]")
    space = Space(signature=signature, limits=LIMITS["gpu-nightly"])

    def names(dims: str) -> set[tuple[str, int]]:
        restrictions = parse_restrictions(dims)
        reals = real_sizes(attrs.evolve(space, restrictions=restrictions))
        return {(real.name, real.size) for real in reals}

    assert names("") == {("H", 8192), ("H", 4096), ("K", 8192), ("K", 4096)}
    assert names("H=1..5000 K=1..64") == {("H", 4096)}
    assert names("H=1..9000 H%3==0 K%H==0 K=3..6") == set()


def test_other_lanes_have_none() -> None:
    """Cases that run on a CPU stay small."""
    kernel = KERNELS["logp/packed"]

    for lane, limits in LIMITS.items():
        reals = real_sizes(attrs.evolve(space_of(kernel), limits=limits))
        assert bool(reals) == (lane == "gpu-nightly")


@pytest.mark.parametrize("name", sorted(CONTEXT_SIGNATURES))
def test_cases_of_the_largest_lane_are_legal(name: str) -> None:
    """Padding, dead rows and shared rows come on top of the limits, and make no case too large."""
    space = Space(signature=CONTEXT_SIGNATURES[name], limits=LIMITS["gpu-nightly"])

    for held in (space, *(held_at(space, real) for real in real_sizes(space))):
        cases = [case_of_seed(seed, held) for seed in range(12)]
        assert not any(illegal_in(space, case) for case in cases)
