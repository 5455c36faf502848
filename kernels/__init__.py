"""The kernels that biprop tests, each with its declaration; what is not listed here is not run.

Nothing registers itself: `biprop.registry` reads `OPERATORS` and `CACHES`, and passes them down.
How a kernel is judged is none of this folder's business (`biprop.judgment`).
"""

if __name__ != "biprop.kernels":
    raise ImportError(
        f"This folder was imported as {__name__!r}, which would make a second copy of its classes: "
        "import biprop.kernels."
    )

from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kernels.batch_invariant_logp import OPERATOR as BATCH_INVARIANT_LOGP
from biprop.kernels.det_gemm import OPERATOR as DET_GEMM
from biprop.kernels.embedding import OPERATOR as EMBEDDING
from biprop.kernels.grpo_loss import OPERATOR as GRPO_LOSS
from biprop.kernels.linear_logp import OPERATOR as LINEAR_LOGP
from biprop.kernels.lm_head import OPERATOR as LM_HEAD
from biprop.kernels.logp import OPERATOR as LOGP
from biprop.kernels.native_linear import OPERATOR as NATIVE_LINEAR
from biprop.kernels.native_sdpa import OPERATOR as NATIVE_SDPA
from biprop.kernels.paged import OPERATOR as PAGED
from biprop.kernels.qk_norm import OPERATOR as QK_NORM
from biprop.kernels.ratio_kl import OPERATOR as RATIO_KL
from biprop.kernels.rms_norm import OPERATOR as RMS_NORM
from biprop.kernels.rope import OPERATOR as ROPE
from biprop.kernels.silu import OPERATOR as SILU
from biprop.kernels.swiglu import OPERATOR as SWIGLU
from biprop.kvcache.protocol import CacheOperator
from biprop.operators import Operator

__all__ = ["CACHES", "OPERATORS"]

OPERATORS: tuple[Operator, ...] = (
    EMBEDDING,
    RMS_NORM,
    QK_NORM,
    DET_GEMM,
    ROPE,
    ATTENTION,
    SILU,
    SWIGLU,
    LM_HEAD,
    LINEAR_LOGP,
    LOGP,
    BATCH_INVARIANT_LOGP,
    GRPO_LOSS,
    RATIO_KL,
    NATIVE_LINEAR,
    NATIVE_SDPA,
)

CACHES: tuple[CacheOperator, ...] = (PAGED,)
