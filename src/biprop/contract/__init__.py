"""The contract: every threshold, role and aggregate that a judgment needs, from one JSON file.

README.md beside this file is the contract for readers. Nothing is judged here: relations ask for a
tolerance, and `biprop.bits` compares.
"""

from biprop.contract.load import contract_from_bytes, load_contract
from biprop.contract.records import (
    DTYPES,
    JUDGMENTS,
    MANDATORY_DTYPES,
    METRICS,
    OP_CLASSES,
    ROLES,
    ChainAggregates,
    Contract,
    ContractCell,
    Deferred,
    Judgment,
    Metric,
    MetricThreshold,
    Override,
    Role,
    RolePair,
    Roles,
    Tolerance,
    judgment_of,
)

__all__ = [
    "DTYPES",
    "JUDGMENTS",
    "MANDATORY_DTYPES",
    "METRICS",
    "OP_CLASSES",
    "ROLES",
    "ChainAggregates",
    "Contract",
    "ContractCell",
    "Deferred",
    "Judgment",
    "Metric",
    "MetricThreshold",
    "Override",
    "Role",
    "RolePair",
    "Roles",
    "Tolerance",
    "contract_from_bytes",
    "judgment_of",
    "load_contract",
]
