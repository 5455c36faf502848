"""Minimise findings: cases in, smaller cases with the same cause out, and a proof with them.

Knows nothing of Hypothesis: it works on the JSON values that cases are.
"""

from biprop.minimize.cost import Cost, cost
from biprop.minimize.run import Minimised, classes_of, minimise

__all__ = ["Cost", "Minimised", "classes_of", "cost", "minimise"]
