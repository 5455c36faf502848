"""T6, selection and packing: which tokens are gathered, how rows are packed, in which form."""

from typing import ClassVar

import attrs
from attrs.validators import ge, le

from biprop.layout import Layout

__all__ = ["GatherActive", "PackRows", "UseForm"]


@attrs.frozen(kw_only=True)
class GatherActive:
    """Launch only the gathered active tokens of a token-wise signature.

    Attributes:
        scatter: Not 0: seed of a permutation that interleaves the tokens of all sequences.
    """

    scatter: int = attrs.field(default=0, validator=[ge(0), le(2**31 - 1)])

    transform_class: ClassVar[str] = "T6"
    source_class: ClassVar[str] = "selection_packing"
    fields: ClassVar[tuple[str, ...]] = ("selection.active_only", "selection.scatter")

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the selection set."""
        selection = attrs.evolve(layout.selection, active_only=True, scatter=self.scatter)
        return attrs.evolve(layout, selection=selection)


@attrs.frozen(kw_only=True)
class PackRows:
    """Let sequences share rows of queries and contexts, under a block-diagonal mask.

    Positions start anew with each sequence.

    Attributes:
        per_row: Sequences of a row; the last row may have fewer.
    """

    per_row: int = attrs.field(default=2, validator=[ge(2), le(65536)])

    transform_class: ClassVar[str] = "T6"
    source_class: ClassVar[str] = "selection_packing"
    fields: ClassVar[tuple[str, ...]] = ("selection.per_row",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the rows packed."""
        selection = attrs.evolve(layout.selection, per_row=self.per_row)
        return attrs.evolve(layout, selection=selection)


def _name(_: object, __: object, form: str) -> None:
    if not (form.isascii() and form.isidentifier()):
        raise ValueError(f"form={form!r} is no name")


@attrs.frozen(kw_only=True)
class UseForm:
    """Launch the same tokens through another form of the operator, under the same backend.

    Padded rows in place of packed tokens, or the other way round; or tokens picked by their index.
    What a launch is, other transforms included, says then the signature of that form.

    Attributes:
        form: Its name.
    """

    form: str = attrs.field(default="packed", validator=_name)

    transform_class: ClassVar[str] = "T6"
    source_class: ClassVar[str] = "selection_packing"
    fields: ClassVar[tuple[str, ...]] = ("selection.form",)

    def apply(self, layout: Layout) -> Layout:
        """Return `layout` with the form set."""
        return attrs.evolve(layout, selection=attrs.evolve(layout.selection, form=self.form))
