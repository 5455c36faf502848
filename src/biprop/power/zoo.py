"""The zoo as `biprop fuzz` takes kernels: entries of a manifest, and operators of a package.

`biprop power` opens what is planted by itself (`biprop.power.benches`). A campaign takes what
people name: planted kernels are targets, so they are a manifest. Defects of the chain break one
direction of a registered operator, which no target has; each of them is an operator of its own
here, named by the entry point of a package (`biprop.registry`). Only so are inaccurate ones held
against their reference.
"""

import json
from collections.abc import Sequence

import attrs

from biprop.kernels import OPERATORS as REGISTERED
from biprop.kernels.planted import CHAIN, PLANTED, ChainDefect
from biprop.operators import Operator
from biprop.power.benches import broken
from biprop.power.manifest import Entry

__all__ = ["OPERATORS", "manifest_text", "zoo_entries", "zoo_operators"]


def zoo_entries(device: str) -> tuple[Entry, ...]:
    """Return the planted kernels that a device runs, each with its twin, as entries of a manifest.

    Args:
        device: `cpu`, which runs Triton kernels in their interpreter, or a CUDA device.
    """
    kind_of_device = "cpu" if device == "cpu" else "cuda"
    return tuple(
        Entry(
            name=item.name,
            target=item.kernel().target,
            signature=item.signature,
            dtypes=item.dtypes,
            kind=item.mechanism,
            direction=item.direction,
            dims=item.dims,
            healthy=item.kernel(healthy=True).target,
        )
        for item in PLANTED
        if kind_of_device in item.devices
    )


def zoo_operators() -> tuple[Operator, ...]:
    """Return one operator for each defect of the chain, under the defect's name.

    It has the form and the torch backend that are broken, and nothing else.
    """
    return tuple(map(_broken_alone, CHAIN))


def manifest_text(entries: Sequence[Entry]) -> str:
    """Return the text that `biprop.power.manifest.parse_manifest` reads as these entries."""
    return json.dumps([_entry_data(entry) for entry in entries], indent=2) + "\n"


def _broken_alone(defect: ChainDefect) -> Operator:
    operator = broken(next(item for item in REGISTERED if item.name == defect.operator), defect)
    form = next(item for item in operator.forms if item.name == defect.form)
    torch_alone = tuple(item for item in form.implementations if item.backend == "torch")
    alone = attrs.evolve(form, implementations=torch_alone)
    declaration = operator.declaration
    if declaration is not None and defect.direction == "forward":
        # Its backward is the healthy one: nothing is to be found there.
        declaration = attrs.evolve(declaration, backward=False)
    return attrs.evolve(operator, name=defect.name, forms=(alone,), declaration=declaration)


def _entry_data(entry: Entry) -> dict[str, object]:
    """Return a JSON object that leaves out what says nothing."""
    data: dict[str, object] = {
        "name": entry.name,
        "target": entry.target,
        "signature": entry.signature,
        "dtype": list(entry.dtypes),
        "kind": entry.kind,
        "direction": entry.direction,
    }
    others: dict[str, object] = {
        "classes": list(entry.classes),
        "dims": entry.dims,
        "healthy": entry.healthy,
    }
    return data | {name: value for name, value in others.items() if value}


# What an entry point names.
OPERATORS = zoo_operators()
