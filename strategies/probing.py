"""The probes of the contract that suit a cell, as cases for its judge.

How a probe is judged says `biprop.relations.probes`; a search judges them once, after accuracy.
"""

import attrs

from biprop.case import Against, Case
from biprop.contract.probes import probes_for
from biprop.generation import Space

__all__ = ["PROBES", "probe_cases"]

# What they are counted under.
PROBES = "probes"


def probe_cases(space: Space, accuracy: Against) -> tuple[tuple[Case, ...], str]:
    """Return the probes of a space, and why there are none.

    Args:
        space: Of a registered operator.
        accuracy: Relation A of the space, whose tolerance some of them take.
    """
    if space.direction != "forward":
        return (), "gradients are not probed"
    assert space.op_class is not None, "only registered operators are held against anything"
    plan = probes_for(space.signature, op_class=space.op_class, restrictions=space.restrictions)
    cases = tuple(
        attrs.evolve(
            probe.case,
            against=attrs.evolve(accuracy, probe=probe.name),
            execution=space.execution,
        )
        for probe in plan.probes
        if probe.case.dtype == space.dtype
    )
    reasons = (item.reason for item in plan.absent)
    return cases, "" if cases else next(reasons, f"no probe is of {space.dtype}")
