"""Targets of a campaign that cannot be opened: refused before it begins, each in a sentence.

What is opened how says `biprop.supervision.opening`.
"""

from contextlib import closing

from biprop.cli.fuzz import FuzzRequest
from biprop.cli.output import complain
from biprop.supervision import Child
from biprop.supervision.opening import refusals
from biprop.supervision.output import Tail

__all__ = ["check_targets"]


def check_targets(request: FuzzRequest, *, device: str) -> None:
    """Refuse targets that no cell could be searched of.

    Entries of a manifest are complained of alone, as long as one is left: the others are searched.

    Args:
        request: Names targets.
        device: Where they will be searched.

    Raises:
        BipropError: A target of the command line, or every entry, cannot be opened.
    """
    entries = {entry.name: entry.reference() for entry in request.entries}
    references = (*request.references, *entries.values())
    if not references:
        return
    with closing(Tail()) as output, closing(Child(device=device, output=output)) as child:
        found = tuple(refusals(references, child=child, timeout=request.timeout))
    count = len(request.references)
    named = next((refusal for refusal in found[:count] if refusal is not None), None)
    if named is not None:
        raise named
    wrong = {
        name: refusal
        for name, refusal in zip(entries, found[count:], strict=True)
        if refusal is not None
    }
    if wrong and len(wrong) == len(entries) and not (count or request.operators):
        raise next(iter(wrong.values()))
    for name, refusal in wrong.items():
        complain(f"Entry {name!r} cannot be searched: {refusal}")
