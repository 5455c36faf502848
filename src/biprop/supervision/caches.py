"""The worker's part for caches: find them by reference, and judge programs of them.

The other side is `biprop.supervision.programs`. Imports the target, so whether it may run must be
settled before.
"""

import os
from collections.abc import Callable
from typing import cast

import attrs
import torch

from biprop.case import Json
from biprop.errors import BipropError, TargetError
from biprop.execution.device import is_lost
from biprop.judgment import Verdict
from biprop.kvcache.converting import CONVERTER, program_from_data, program_outcome_to_data
from biprop.kvcache.interpreter import judge_program
from biprop.kvcache.protocol import CacheFactory, CacheImplementation, CacheOperator
from biprop.kvcache.records import CacheReference, ProgramCause
from biprop.kvcache.shape import CacheShape
from biprop.loading import load_target
from biprop.operators import Operator, Registry
from biprop.provenance import collect
from biprop.relations.messages import message_of
from biprop.supervision.resolve import file_of
from biprop.supervision.vitals import VitalsWriter

__all__ = ["Caches", "FindCache", "FoundCache", "check_cache", "resolve_cache"]

FindCache = Callable[[str], CacheOperator]

# What `biprop.kvcache.protocol.KVCache` names.
_METHODS = (
    "allocate",
    "append",
    "attend",
    "decode",
    "fork",
    "read",
    "length",
    "evict",
    "free",
    "defragment",
    "poison",
)


@attrs.frozen(kw_only=True, eq=False)
class FoundCache:
    """A cache with what judging programs of it takes.

    Attributes:
        operator: The cache.
        implementation: The backend of it.
        attention: Operator whose packed form makes full prefills; None: a fresh cache does.
    """

    operator: CacheOperator
    implementation: CacheImplementation
    attention: Operator | None


def resolve_cache(
    reference: CacheReference, registry: Registry, find_cache: FindCache
) -> FoundCache:
    """Return the cache of a reference.

    Raises:
        TargetError: It cannot be found, or has no such backend.
    """
    if reference.is_registered:
        operator = find_cache(reference.target)
        for implementation in operator.implementations:
            if implementation.backend == reference.backend:
                break
        else:
            known = ", ".join(item.backend for item in operator.implementations)
            raise TargetError(
                f"Cache {operator.name!r} has no backend {reference.backend!r}: there are {known}."
            )
    else:
        # What it returns is looked at when one is made.
        factory = cast("CacheFactory", load_target(reference.target, may_be_class=True))
        implementation = CacheImplementation(backend="target", make=factory)
        operator = CacheOperator(
            name=reference.target,
            implementations=(implementation,),
            attention=reference.attention,
        )
    return FoundCache(
        operator=operator,
        implementation=implementation,
        attention=_attention(operator.attention, registry),
    )


def check_cache(found: FoundCache, *, device: str) -> None:
    """Make a cache of the smallest shape, and see that it is one.

    Raises:
        TargetError: The target raised, or returned something else; the sentence says what.
    """
    name = found.operator.name
    try:
        made = found.implementation.make(CacheShape(), torch.device(device))
    except BipropError:
        raise
    # A target may raise anything, and may call sys.exit().
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"Cache {name} raised for {CacheShape()}: {message_of(error)}; correct the function, "
            "which is called with a CacheShape and a torch.device."
        ) from error
    absent = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if absent:
        raise TargetError(
            f"Cache {name} returned {type(made).__name__}, which has no {absent[0]}: let the "
            "function return a KVCache (biprop.kvcache.protocol)."
        )


class Caches:
    """Caches that were opened, by number.

    Attributes:
        device_is_lost: Whether a program cost this process its device.
    """

    def __init__(
        self, registry: Registry, find_cache: FindCache, *, vitals: VitalsWriter, device: str
    ) -> None:
        """Open none yet."""
        self._registry = registry
        self._find_cache = find_cache
        self._vitals = vitals
        self._device = device
        self._caches: list[FoundCache] = []
        self.device_is_lost = False

    def open(self, message: dict[str, Json]) -> dict[str, Json]:
        """Find a cache, and make one if asked; describe it."""
        self._vitals.mark("open")
        os.chdir(str(message["folder"]))
        reference = CONVERTER.structure(message["reference"], CacheReference)
        found = resolve_cache(reference, self._registry, self._find_cache)
        if message["trial"]:
            check_cache(found, device=self._device)
        self._caches.append(found)
        provenance = collect(
            self._device,
            threads=torch.get_num_threads(),
            target_file=file_of(found.implementation.make),
        )
        return {
            "cache": len(self._caches) - 1,
            "provenance": CONVERTER.unstructure(provenance),
        }

    def judge(self, message: dict[str, Json]) -> dict[str, Json]:
        """Judge a program with a cache that was opened."""
        self._vitals.mark("prepare")
        found = self._caches[int(str(message["cache"]))]
        program = program_from_data(message["program"])
        outcome = judge_program(
            found.operator,
            found.implementation,
            found.attention,
            program,
            device=self._device,
            repeats=int(str(message["repeats"])),
            registry=self._registry,
            measure=bool(message["measure"]),
            # Where launches are counted for cases, the operation is told.
            on_step=lambda number: self._vitals.mark("program", number),
        )
        if outcome.verdict is Verdict.CRASHES:
            self.device_is_lost = is_lost(torch.device(self._device))
        if self.device_is_lost:
            # Repeats and milder fills ran on a device that computes no more, and say nothing.
            cause = ProgramCause(verdict=Verdict.CRASHES)
            told = f"The device was lost: {outcome.message}"
            outcome = attrs.evolve(outcome, cause=cause, message=told, repeats=1)
        return {
            "outcome": program_outcome_to_data(outcome),
            "device_is_lost": self.device_is_lost,
        }


def _attention(name: str, registry: Registry) -> Operator | None:
    if not name:
        return None
    for operator in registry.operators:
        if operator.name == name:
            return operator
    known = ", ".join(operator.name for operator in registry.operators)
    raise TargetError(f"No operator {name!r} is registered for full prefills: there are {known}.")
