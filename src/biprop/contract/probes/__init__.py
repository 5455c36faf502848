"""Cases that show in what precision a kernel adds and multiplies, whatever its flags say.

Each is so made that float32 arithmetic has one result in every order of its sums, and a narrower
one another. What a kernel computes is guessed from its signature and class, so a probe condemns
nobody whose float32 reference does not give the expected values: there it says nothing.
`biprop.relations.probes` runs both.

- `bf16_accumulation`: numbers that cancel to 129, and 1024 ones. A bfloat16 sum of numbers, or of
  blocks of them, is even while it is large, and of ones it stops at 256; a float32 sum is exact.
  Sums of squares and of exponentials cannot cancel, and have designs of their own.
- `float32_products`: 1 + 2**-12 times 1. TF32 keeps 10 bits of a fraction, and gives 1.
- `float32_scores`: the same in the scores of attention, where it moves a weight.
"""

from biprop.contract.probes.attention import attention_probes
from biprop.contract.probes.records import (
    ACCUMULATION,
    PRODUCTS,
    SCORES,
    Absent,
    Expected,
    Probe,
    ProbePlan,
)
from biprop.contract.probes.sizes import Sizes
from biprop.contract.probes.sums import logprob_probes, reduction_probes
from biprop.contract.records import OpClass
from biprop.signature import Restrictions, Signature
from biprop.signature.roles import has_contexts

__all__ = [
    "ACCUMULATION",
    "PRODUCTS",
    "SCORES",
    "Absent",
    "Expected",
    "Probe",
    "ProbePlan",
    "probes_for",
]


def probes_for(
    signature: Signature, *, op_class: OpClass, restrictions: Restrictions | None = None
) -> ProbePlan:
    """Return the probes of the outputs of a signature, each with a case that is legal for it.

    Raises:
        RestrictionError: The restrictions do not fit the signature.
    """
    sizes = Sizes(signature=signature, restrictions=restrictions or Restrictions())
    if op_class == "attention" and has_contexts(signature):
        found = attention_probes(sizes)
    elif op_class == "logprob":
        found = logprob_probes(sizes)
    elif op_class == "reduction":
        found = reduction_probes(sizes)
    else:
        found = (
            Absent(name=ACCUMULATION, reason="nothing is known to be added"),
            Absent(name=PRODUCTS, reason="no products are known to be added"),
        )
    return ProbePlan(
        probes=tuple(item for item in found if isinstance(item, Probe)),
        absent=tuple(item for item in found if isinstance(item, Absent)),
    )
