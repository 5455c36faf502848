"""Run the scenarios of every stack that is bound."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import attrs
import torch

from biprop.case import Execution
from biprop.errors import UsageError, words_of
from biprop.execution.switches import switched
from biprop.judgment import Verdict
from biprop.kvcache.stacks.binding import STACKS, bind_transformers, binding_of
from biprop.kvcache.stacks.comparing import found
from biprop.kvcache.stacks.models import CACHE_MAKERS, CacheMaker, Subject, make
from biprop.kvcache.stacks.records import Choice, Finding, StackReport
from biprop.kvcache.stacks.scenarios import RUNS
from biprop.provenance import arch_key, device_name, version_of

__all__ = ["run_stacks"]

_MESSAGE_LENGTH_MAX = 400


def run_stacks(
    names: Sequence[str] = STACKS,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    choice: Choice | None = None,
    caches: Mapping[str, CacheMaker] = CACHE_MAKERS,
) -> tuple[StackReport, ...]:
    """Run the scenarios of stacks and report what drifts.

    Nothing is downloaded: models are made of configurations, and weights of the seed.

    Args:
        names: Of `STACKS`, each reported in this order.
        seed: Of weights and token ids, 0 to 2**32 - 1.
        device: Where models lie.
        choice: Which scenarios; None: all.
        caches: How a kind of cache is made; another maker puts another cache in its place.

    Raises:
        UsageError: A name is no stack.
    """
    unknown = [name for name in names if name not in STACKS]
    if unknown:
        raise UsageError(f"There is no stack {unknown[0]!r}: choose from {', '.join(STACKS)}.")
    place = torch.device(device)
    return tuple(_reported(name, seed, place, choice or Choice(), caches) for name in names)


def _reported(
    name: str, seed: int, device: torch.device, choice: Choice, caches: Mapping[str, CacheMaker]
) -> StackReport:
    binding, reason = binding_of(name)
    report = StackReport(stack=name, binding=binding, reason=reason, seed=seed)
    if binding != "bound":
        return report
    with switched(Execution()), torch.no_grad():
        findings = tuple(_findings(seed, device, choice, caches))
    return attrs.evolve(
        report,
        version=version_of(name),
        torch=version_of("torch"),
        device=str(device),
        device_name=device_name(str(device)),
        arch_key=arch_key(str(device)),
        findings=findings,
    )


def _findings(
    seed: int, device: torch.device, choice: Choice, caches: Mapping[str, CacheMaker]
) -> Iterator[Finding]:
    package = bind_transformers()
    for name, dtype, attention in product(choice.models, choice.dtypes, choice.attentions):
        model = make(
            package,
            name,
            dtype=getattr(torch, dtype),
            attention=attention,
            seed=seed,
            device=device,
        )
        for cache in choice.caches:
            subject = Subject(
                package=package,
                model=model,
                device=device,
                make_cache=caches[cache],
                is_static=cache == "static",
                seed=seed,
            )
            for scenario in choice.scenarios:
                # Only caches of a fixed size have room to spare.
                if scenario != "room" or subject.is_static:
                    yield _finding(
                        Finding(
                            scenario=scenario,
                            model=name,
                            dtype=dtype,
                            attention=attention,
                            cache=cache,
                            verdict=Verdict.VACUOUS,
                        ),
                        subject,
                    )


def _finding(finding: Finding, subject: Subject) -> Finding:
    run = RUNS[finding.scenario]
    try:
        pairs, again = run(subject), run(subject)
    except Exception as error:  # noqa: BLE001  # whatever the stack raises is what it gave
        message = f"{type(error).__name__}: {words_of(error)[:_MESSAGE_LENGTH_MAX]}"
        return attrs.evolve(finding, verdict=Verdict.CRASHES, message=message)
    return found(finding, pairs, again)
