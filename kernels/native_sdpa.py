"""PyTorch's own attention: registered, and exempt from every promise.

What promises to keep a token's bits is `biprop.kernels.attention`.
"""

from torch.nn import functional

from biprop.operators import Form, Implementation, Operator
from biprop.signature import parse_restrictions, parse_signature

__all__ = ["OPERATOR"]

OPERATOR = Operator(
    name="native_sdpa",
    op_class="attention",
    forms=(
        Form(
            name="padded",
            signature=parse_signature(
                "q[B,H,Q,D], k[B,H,C,D], v[B,H,C,D], mask: causal_mask[B,1,Q,C] -> out[B,H,Q,D]"
            ),
            implementations=(
                Implementation(backend="torch", forward=functional.scaled_dot_product_attention),
            ),
        ),
    ),
    exempt_reason=(
        "torch.nn.functional.scaled_dot_product_attention chooses its algorithm by the number of "
        "queries and keys of a launch, padding included: a token of a prefill and the same token "
        "decoded differ in their bits."
    ),
    restrictions=parse_restrictions("H=1..64 D=1..256"),
)
