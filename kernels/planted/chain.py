"""The planted defects of registered operators, one a direction, in the order of the chain."""

from biprop.kernels.planted.chain_attention import CHAIN_ATTENTION
from biprop.kernels.planted.chain_elementwise import CHAIN_ELEMENTWISE
from biprop.kernels.planted.chain_logprob import CHAIN_LOGPROB
from biprop.kernels.planted.chain_losses import CHAIN_LOSSES
from biprop.kernels.planted.chain_matrix import CHAIN_MATRIX
from biprop.kernels.planted.chain_norms import CHAIN_NORMS
from biprop.kernels.planted.records import ChainDefect

__all__ = ["CHAIN"]

CHAIN: tuple[ChainDefect, ...] = (
    *CHAIN_ELEMENTWISE,
    *CHAIN_NORMS,
    *CHAIN_MATRIX,
    *CHAIN_ATTENTION,
    *CHAIN_LOGPROB,
    *CHAIN_LOSSES,
)
