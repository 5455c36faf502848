"""What shrinking does not bring down to its smallest structure: the ledger, listed by name.

Of each planted kernel and dtype, the components of the declared cost (`biprop.minimize.cost`) that
stay above those of the smallest failing structure, with the seed of the tests. `biprop power` finds
them; an entry that is reached after all fails its test, and has to go.
"""

from biprop.case import Dtype

__all__ = ["UNREACHED"]

UNREACHED: dict[tuple[str, Dtype], tuple[str, ...]] = {}
