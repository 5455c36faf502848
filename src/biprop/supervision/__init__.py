"""Supervision: a kernel that crashes, hangs or prints does so in a process of its own.

Nothing here imports torch: the worker's side is `biprop.supervision.serve`, and
`biprop.supervision.in_process` judges without a worker, both to be imported by name.
"""

from biprop.supervision.child import WORKER_COMMAND, Child
from biprop.supervision.journal import Journal, Leftover
from biprop.supervision.ledger import Ledger
from biprop.supervision.pending import AheadJudge, Pending, begin
from biprop.supervision.records import BrokenOffError, Description, Judge
from biprop.supervision.supervised import SupervisedJudge

__all__ = [
    "WORKER_COMMAND",
    "AheadJudge",
    "BrokenOffError",
    "Child",
    "Description",
    "Journal",
    "Judge",
    "Ledger",
    "Leftover",
    "Pending",
    "SupervisedJudge",
    "begin",
]
