"""Which tensors of a case need a recipe.

Asked by whoever draws data, and by `biprop.generation.legal`; what a recipe may be is said there.
"""

from biprop.case import Judged
from biprop.signature import Argument, Signature

__all__ = ["recipes_needed"]


def recipes_needed(
    signature: Signature, judged: Judged, backward_signature: Signature | None = None
) -> tuple[dict[str, Argument], dict[str, Argument]]:
    """Return which tensors need a recipe in `data`, and which in `policy_state`, by name.

    Upstream gradients are called `d<output>` and stand for the argument that the output is.
    """
    data = {item.name: item for item in signature.token_arguments}
    if judged != "outputs":
        taken = (
            None if backward_signature is None else {i.name for i in backward_signature.arguments}
        )
        for item in signature.judged_outputs:
            name = f"d{item.name}"
            if item.is_float and (taken is None or name in taken):
                data[name] = item
    return data, {item.name: item for item in signature.parameters}
