"""Hypothesis strategies that draw sequences, layouts and cases, and the properties that use them.

The generator behind them knows nothing of Hypothesis (`biprop.generation`), and what a failure
means is decided below (`biprop.judgment`).
"""

if __name__ != "biprop.strategies":
    raise ImportError(
        f"This folder was imported as {__name__!r}, which would make a second copy of its classes: "
        "import biprop.strategies."
    )

from biprop.strategies.structured import cases, layouts, sequences, transforms

__all__ = ["cases", "layouts", "sequences", "transforms"]
