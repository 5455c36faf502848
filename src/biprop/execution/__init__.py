"""Execution: one case, run in its canonical configuration and in transformed ones.

`prepare` expands the data once; `run_canonical` and `run_transformed` launch the kernel and hand
back what is compared, in logical order. Nothing is compared here: `biprop.relations` does that,
`biprop.bits` says how.
"""

from biprop.execution.run import (
    Prepared,
    Run,
    TokenIndex,
    prepare,
    reference_outputs,
    run_canonical,
    run_transformed,
)

__all__ = [
    "Prepared",
    "Run",
    "TokenIndex",
    "prepare",
    "reference_outputs",
    "run_canonical",
    "run_transformed",
]
