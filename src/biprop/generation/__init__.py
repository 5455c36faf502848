"""Draw legal cases: one generator behind the `Draw` protocol, and the one rule of what is legal.

Torch-free. Cases are drawn here and run elsewhere (`biprop.execution`); Hypothesis stands behind
`Draw` in `biprop.strategies` only.
"""

from biprop.generation.classes import CLASSES, applicability, judged_kinds, wanted_classes
from biprop.generation.conditioned import rescaled
from biprop.generation.draw import Draw, RandomDraw
from biprop.generation.generator import draw_case, illegal_in, simplest_case
from biprop.generation.layouts import draw_layouts
from biprop.generation.legal import illegal, legal_for
from biprop.generation.needs import recipes_needed
from biprop.generation.real_sizes import RealSize, held_at, real_sizes
from biprop.generation.space import LIMITS, Exclusion, Lane, Limits, Space
from biprop.generation.sweep import Sweep

__all__ = [
    "CLASSES",
    "LIMITS",
    "Draw",
    "Exclusion",
    "Lane",
    "Limits",
    "RandomDraw",
    "RealSize",
    "Space",
    "Sweep",
    "applicability",
    "draw_case",
    "draw_layouts",
    "held_at",
    "illegal",
    "illegal_in",
    "judged_kinds",
    "legal_for",
    "real_sizes",
    "recipes_needed",
    "rescaled",
    "simplest_case",
    "wanted_classes",
]
