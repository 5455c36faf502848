"""The planted defects of registered operators: one a direction, in the order of the chain.

After these come those that are the same in every batch, and inaccurate.
"""

from biprop.kernels.planted.chain_accuracy import CHAIN_ACCURACY
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
    *CHAIN_ACCURACY,
)
