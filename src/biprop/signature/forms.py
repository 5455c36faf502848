"""Forms of an operator as signatures: several ways to hand the same tokens to it.

Which of them can stand for one another decides `biprop.generation.forms`.
"""

from collections.abc import Mapping

import attrs

from biprop.signature.records import Signature

__all__ = ["FormSignatures", "Forms", "form_launched"]


@attrs.frozen(kw_only=True)
class FormSignatures:
    """What one form takes and returns.

    Attributes:
        signature: Forward signature.
        backward_signature: Of its registered backward; None where autograd differentiates.
    """

    signature: Signature
    backward_signature: Signature | None = None


# By name.
Forms = Mapping[str, FormSignatures]


def form_launched(own: FormSignatures, forms: Forms, name: str) -> FormSignatures:
    """Return the form that a layout names; its own where the name is empty or means nothing."""
    return forms.get(name, own)
