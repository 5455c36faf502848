"""Which classes of a composition really change the physical call.

What the call is says `biprop.layout.physical`; whether a changed call could show a defect says the
power of the data (`biprop.execution.power`). This module needs torch, the records of the package do
not.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest
from types import MappingProxyType

import attrs

from biprop.case import Case
from biprop.layout import Layout, Neighbours, Storage
from biprop.layout.launch import Launch
from biprop.layout.launches import each_launch
from biprop.layout.physical import (
    DescribedMap,
    PhysicalCall,
    called_signatures,
    described,
    physical,
)
from biprop.layout.pool import TokenPool, token_pool
from biprop.signature import Signature
from biprop.signature.forms import Forms, FormSignatures, form_launched
from biprop.transforms import apply_all, class_of, transforms_of

__all__ = ["KnownMaps", "changed_classes", "without_content"]

_NO_FORMS: Forms = MappingProxyType({})


@attrs.frozen(kw_only=True, eq=False)
class KnownMaps:
    """What was made already for layouts of one case, or of cases that differ in transforms alone.

    Attributes:
        pools: By neighbours.
        launches: By layout, as `without_content` returns it.
        described: What `biprop.layout.physical.described` says of each of them, likewise.
    """

    pools: dict[Neighbours, TokenPool] = attrs.field(factory=dict)
    launches: dict[Layout, tuple[Launch, ...]] = attrs.field(factory=dict)
    described: dict[Layout, tuple[tuple[DescribedMap, ...], ...]] = attrs.field(factory=dict)


def changed_classes(
    signature: Signature,
    case: Case,
    *,
    backward_signature: Signature | None = None,
    align: int = 1,
    poison_reached: bool = True,
    forms: Forms = _NO_FORMS,
    known: KnownMaps | None = None,
) -> dict[str, bool]:
    """Say of each class of a case's composition whether taking it out changes the call.

    Args:
        signature: Forward signature.
        case: A legal case.
        backward_signature: Of a registered backward.
        align: Bytes that the target demands of base pointers.
        poison_reached: Whether poisons reach outputs or workspaces of this target; if not, dirty
            ones are no change.
        forms: Other forms of the operator, by name.
        known: Of the case; what is made here is added to it.

    Returns:
        By class as it is counted (`T1`, `T4.finite`, ...), in the order of the composition.
    """
    transforms = transforms_of(case)
    own = FormSignatures(signature=signature, backward_signature=backward_signature)
    eye = _Eye(own, case, align, poison_reached, forms, known or KnownMaps())
    whole = eye.call(apply_all(transforms))
    return {
        name: eye.sees_change(whole, apply_all(t for t in transforms if class_of(t) != name))
        for name in dict.fromkeys(map(class_of, transforms))
    }


@attrs.frozen(eq=False)
class _Eye:
    """Describes the layouts of one case; launches are the dear part, so they are made once."""

    own: FormSignatures
    case: Case
    align: int
    poison_reached: bool
    forms: Forms
    known: KnownMaps

    def call(self, layout: Layout) -> PhysicalCall:
        where = without_content(layout)
        if where not in self.known.launches:
            self.known.launches[where] = tuple(self._launches(layout))
        made, form, pool = self.known.launches[where], self._form(layout), self._pool(layout)
        if where not in self.known.described:
            called = called_signatures(form.signature, self.case, form.backward_signature)
            self.known.described[where] = tuple(described(each, pool, called) for each in made)
        call = physical(
            form.signature,
            self.case,
            layout,
            backward_signature=form.backward_signature,
            align=self.align,
            pool=pool,
            made=made,
            maps=self.known.described[where],
        )
        return call if self.poison_reached else attrs.evolve(call, dirty=False)

    def sees_change(self, whole: PhysicalCall, layout: Layout) -> bool:
        if layout.selection.form != whole.form:
            # Another function is called, and what is left may be nothing that it could be called
            # with.
            return True
        where = without_content(layout)
        if where not in self.known.launches:
            # The first launch that differs is enough; without T1 there may be many more.
            made = []
            form = self._form(layout)
            called = called_signatures(form.signature, self.case, form.backward_signature)
            for launch, there in zip_longest(self._launches(layout), whole.launches):
                if launch is None or there != described(launch, self._pool(layout), called):
                    return True
                made.append(launch)
            self.known.launches[where] = tuple(made)
            self.known.described[where] = whole.launches
        return whole != self.call(layout)

    def _launches(self, layout: Layout) -> Iterator[Launch]:
        form = self._form(layout)
        return each_launch(
            form.signature,
            self._pool(layout),
            self.case,
            layout,
            backward_signature=form.backward_signature,
        )

    def _form(self, layout: Layout) -> FormSignatures:
        return form_launched(self.own, self.forms, layout.selection.form)

    def _pool(self, layout: Layout) -> TokenPool:
        if layout.neighbours not in self.known.pools:
            self.known.pools[layout.neighbours] = token_pool(self.case, layout)
        return self.known.pools[layout.neighbours]


@lru_cache(maxsize=4096)
def without_content(layout: Layout) -> Layout:
    """Return `layout` with what no index map depends on set back."""
    return attrs.evolve(
        layout,
        neighbours=attrs.evolve(layout.neighbours, loudness=0),
        padding=attrs.evolve(layout.padding, fill="zero", dead_rows_fill="zero"),
        storage=Storage(),
        shards=1,
    )
