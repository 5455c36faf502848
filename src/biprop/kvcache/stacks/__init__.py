"""Caches of production stacks, bound as they are: what they drift by is reported, never red.

A stack claims nothing of batch invariance, so no scenario of one can fail a run: each says HOLDS
or DRIFTS, with the first token whose logits differ. A stack that is not installed is `absent`, and
nothing is said of it.

>>> from biprop.kvcache.stacks import STACKS
>>> STACKS
('transformers', 'vllm', 'sglang')
"""

from biprop.kvcache.stacks.binding import STACKS
from biprop.kvcache.stacks.records import (
    Choice,
    Finding,
    LogitDifference,
    StackReport,
    report_from_data,
    report_to_data,
)
from biprop.kvcache.stacks.run import run_stacks
from biprop.kvcache.stacks.text import issue_of, issues_of, meaning_of, text_of

__all__ = [
    "STACKS",
    "Choice",
    "Finding",
    "LogitDifference",
    "StackReport",
    "issue_of",
    "issues_of",
    "meaning_of",
    "report_from_data",
    "report_to_data",
    "run_stacks",
    "text_of",
]
