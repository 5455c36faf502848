"""Relations: what is demanded of the runs of a case, judged into one outcome.

Here stands what is asked of a judgement, without torch, so that a process that only asks needs
none; `biprop.relations.judging` judges, with a module for each relation. The runs are made by
`biprop.execution`.
"""

from biprop.relations.causes import cause_of
from biprop.relations.options import JUDGE_OPTIONS, JudgeOptions

__all__ = ["JUDGE_OPTIONS", "JudgeOptions", "cause_of"]
