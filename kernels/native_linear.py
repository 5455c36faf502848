"""PyTorch's own matrix product: registered, and exempt from every promise.

What promises to keep a token's bits is `biprop.kernels.det_gemm`.
"""

from torch.nn import functional

from biprop.operators import Form, Implementation, Operator
from biprop.signature import parse_restrictions, parse_signature

__all__ = ["OPERATOR"]

OPERATOR = Operator(
    name="native_linear",
    op_class="reduction",
    forms=(
        Form(
            name="packed",
            signature=parse_signature("input[T,K], weight[N,K] -> out[T,N]"),
            implementations=(Implementation(backend="torch", forward=functional.linear),),
        ),
    ),
    exempt_reason=(
        "torch.nn.functional.linear chooses its algorithm, and so its order of addition, by the "
        "number of rows: a token alone and the same token in a batch differ in their bits."
    ),
    restrictions=parse_restrictions("K=1..65536 N=1..65536"),
)
