"""The kernels that biprop tests, each with its declaration; what is not listed here is not run.

Nothing registers itself: `biprop.registry` reads `OPERATORS` and passes it down. How a kernel is
judged is none of this folder's business (`biprop.judgment`).
"""

if __name__ != "biprop.kernels":
    raise ImportError(
        f"This folder was imported as {__name__!r}, which would make a second copy of its classes: "
        "import biprop.kernels."
    )

from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.kernels.logp import OPERATOR as LOGP
from biprop.kernels.native_linear import OPERATOR as NATIVE_LINEAR
from biprop.kernels.native_sdpa import OPERATOR as NATIVE_SDPA
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.operators import Operator

__all__ = ["OPERATORS"]

OPERATORS: tuple[Operator, ...] = (
    RMS_NORM,
    DET_GEMM,
    ATTENTION,
    LOGP,
    NATIVE_LINEAR,
    NATIVE_SDPA,
)
