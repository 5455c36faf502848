"""The values of a case: every recipe expanded once for all tokens of a pool.

Launches only gather from these (`biprop.execution.arguments`); they never change, so that both
configurations take the same bits.
"""

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from biprop.case import Case, Judged
from biprop.data.expand import Expansion, Tokens, expand_tokens, expansion_of
from biprop.data.recipe import Recipe
from biprop.data.transfer import Arriving, brought, moved_all
from biprop.errors import CaseError
from biprop.execution.weights import WEIGHTS, weight_digest
from biprop.layout.pool import TokenPool
from biprop.layout.records import Neighbours
from biprop.operators import Kernel
from biprop.signature import Argument, Signature
from biprop.signature.records import DTYPE_KINDS

__all__ = ["Values", "dtype_of", "upstream_outputs", "values_of"]

_TORCH_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "token": torch.int64,
}
# Integers and bools have no recipe of their own: small whole numbers.
_WHOLE = Recipe(kind="integers")


@attrs.frozen(kw_only=True, eq=False)
class Values:
    """Values by name, on the device of the launches.

    Attributes:
        tokens: `[n, *free]` of each argument with a token axis, and of each upstream gradient,
            which is zero on inactive tokens.
        parameters: `[*dims]` of what the whole batch shares.
        position: int64 `[n]`, the position of each token.
    """

    tokens: dict[str, Tensor]
    parameters: dict[str, Tensor]
    position: Tensor
    _bounds: dict[str, int] = attrs.field(factory=dict, alias="largest")
    _largest: dict[str, int] = attrs.field(factory=dict, init=False)
    # Where these are the first tokens only: those of all tokens, with what is taken of them.
    _whole: dict[str, Tensor] | None = attrs.field(default=None, alias="whole")
    _samples: list[Arriving] = attrs.field(factory=list, alias="samples")

    def first(self, count: int) -> "Values":
        """Return the values of the first `count` tokens, in the same memory."""
        if count == len(self.position):
            return self
        return Values(
            tokens={name: values[:count] for name, values in self.tokens.items()},
            parameters=self.parameters,
            position=self.position[:count],
            largest=self._bounds,
            whole=self._whole or self.tokens,
            samples=self._samples,
        )

    def ask(self, sample: Callable[[Tensor], Tensor]) -> None:
        """Start to copy what `sample` takes of the tokens' values, once for all parts of a whole.

        Args:
            sample: Takes `[n, *free]` and returns `[n, ...]`; the same one whenever it is asked.
        """
        if not self._samples:
            whole = self._whole or self.tokens
            self._samples.append(brought([sample(values) for values in whole.values()]))

    def sampled(self, sample: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return by name what `sample` takes of each token's values, on the CPU; see `ask`."""
        self.ask(sample)
        count = len(self.position)
        taken = self._samples[0].taken()
        return {name: rows[:count] for name, rows in zip(self.tokens, taken, strict=True)}

    def largest(self, name: str) -> int:
        """Return the largest value of an integer argument, which its dead slots may hold."""
        if name in self._bounds:
            return self._bounds[name]
        if name not in self._largest:
            # Only on demand: the host waits for the device.
            values = self.tokens[name]
            self._largest[name] = int(values.max()) if values.numel() else 0
        return self._largest[name]


def dtype_of(argument: Argument, case: Case) -> torch.dtype:
    """Return the dtype of an argument or output that holds data."""
    return _TORCH_DTYPES[case.dtype if argument.kind == "float" else argument.kind]


def values_of(
    kernel: Kernel, case: Case, pool: TokenPool, neighbours: Neighbours, device: torch.device
) -> Values:
    """Expand what the arguments of a kernel hold, and upstream gradients where they are needed.

    Raises:
        CaseError: A tensor has no recipe.
    """
    signature = kernel.signature
    maker = _Maker(case=case, pool=pool, device=device, loudness=neighbours.loudness)
    with_ids = [argument for argument in signature.arguments if argument.kind == "token"]
    ids = {argument.name: maker.ids(argument) for argument in with_ids}
    wanted, kept = [], {}
    for argument in signature.arguments:
        if argument.kind not in DTYPE_KINDS or argument.is_supplied_output:
            continue
        recipe = _recipe_of(argument, case)
        digest = "" if argument.token_axis else maker.digest(argument, recipe)
        values = WEIGHTS.find(digest) if digest else None
        if values is None:
            wanted.append(
                maker.wanted(argument.name, argument, recipe, ids, signature, digest=digest)
            )
        else:
            kept[argument.name] = values
    for output in upstream_outputs(kernel, case.judged):
        name = f"d{output.name}"
        if name not in case.data:
            raise CaseError(f"Upstream gradient '{name}' has no recipe: give one in data.")
        wanted.append(maker.wanted(name, output, case.data[name], ids, signature, is_upstream=True))
    largest = {item.name: case.dims[item.parameter or ""] - 1 for item in with_ids}
    return maker.made(wanted, ids, largest, kept)


@attrs.frozen(kw_only=True, eq=False)
class _Wanted:
    """A tensor that is worked out on the host.

    Attributes:
        name: Its name.
        argument: Its declaration.
        expansion: What it holds.
        target: Name of the ids over its last dimension; empty without.
        is_upstream: Whether it is an upstream gradient.
        digest: Of a weight that is to be kept; empty for all others.
    """

    name: str
    argument: Argument
    expansion: Expansion
    target: str
    is_upstream: bool = False
    digest: str = ""


@attrs.frozen(kw_only=True, eq=False)
class _Maker:
    case: Case
    pool: TokenPool
    device: torch.device
    loudness: int

    def ids(self, argument: Argument) -> Tensor:
        """Return int64 `[n, *free]` in [0, V), on the CPU."""
        recipe = self.case.data.get(argument.name)
        sizes = self._sizes(argument)
        count = torch.Size(sizes).numel()
        columns = [
            expand_tokens(
                seed=self.case.seed,
                name=f"{argument.name}[{column}]" if column else argument.name,
                tokens=self.pool.tokens,
                vocabulary=self.case.dims[argument.parameter or ""],
                pairing=recipe.pairing if recipe else None,
            )
            for column in range(count)
        ]
        return torch.stack(columns, dim=1).reshape(-1, *sizes)

    def wanted(
        self,
        name: str,
        argument: Argument,
        recipe: Recipe,
        ids: Mapping[str, Tensor],
        signature: Signature,
        *,
        is_upstream: bool = False,
        digest: str = "",
    ) -> _Wanted:
        """Work out `[n, *free]`, or `[*dims]` of a parameter."""
        target = _target_of(argument, signature)
        expansion = expansion_of(
            recipe,
            seed=self.case.seed,
            name=name,
            tokens=self.pool.tokens if argument.token_axis else None,
            dims=[dim.text for dim in argument.free_dims],
            sizes=self._sizes(argument),
            dtype=self._drawn(argument),
            target=ids.get(target),
            device=self.device,
        )
        return _Wanted(
            name=name,
            argument=argument,
            expansion=expansion,
            target=target,
            is_upstream=is_upstream,
            digest=digest,
        )

    def digest(self, argument: Argument, recipe: Recipe) -> str:
        """Return what tells a weight from others."""
        return weight_digest(
            recipe,
            seed=self.case.seed,
            name=argument.name,
            dims=[dim.text for dim in argument.free_dims],
            sizes=self._sizes(argument),
            dtype=dtype_of(argument, self.case),
            device=self.device,
        )

    def made(
        self,
        wanted: Sequence[_Wanted],
        ids: Mapping[str, Tensor],
        largest: dict[str, int],
        kept: Mapping[str, Tensor],
    ) -> Values:
        """Expand all that is wanted, beside weights that are there already."""
        pool, tokens = self.pool, self.pool.tokens
        plans = [item.expansion.plan for item in wanted]
        sequence_id, token, length, position, *rest = moved_all(
            self.device,
            [
                tokens.sequence_id,
                tokens.token,
                tokens.length,
                pool.position,
                *ids.values(),
                *(plan.table for plan in plans if plan is not None),
                *([pool.loud.nonzero()[:, 0]] if self.loudness else []),
                *([(~pool.active).nonzero()[:, 0]] if wanted and wanted[-1].is_upstream else []),
            ],
        )
        if self.device.type != "cpu":
            tokens = Tokens(sequence_id=sequence_id, token=token, length=length)
        remaining = iter(rest)
        there = {name: next(remaining) for name in ids}
        tables = [None if plan is None else next(remaining) for plan in plans]
        loud = next(remaining) if self.loudness else None
        inactive = next(remaining, None)
        made = Values(tokens=dict(there), parameters=dict(kept), position=position, largest=largest)
        for item, table in zip(wanted, tables, strict=True):
            has_tokens = item.argument.token_axis is not None
            values = item.expansion.values(
                tokens=tokens if has_tokens else None, target=there.get(item.target), table=table
            )
            values = self._finished(item.argument, values, loud)
            if item.is_upstream:
                assert inactive is not None, "upstream gradients come last of all"
                values.index_fill_(0, inactive, 0)
            (made.tokens if has_tokens else made.parameters)[item.name] = values
            if item.digest:
                WEIGHTS.keep(item.digest, values)
        return made

    def _finished(self, argument: Argument, values: Tensor, loud: Tensor | None) -> Tensor:
        """Return expanded values in their dtype, neighbours loud."""
        if argument.is_float and argument.token_axis and loud is not None:
            self._make_loud(values, loud)
        dtype = dtype_of(argument, self.case)
        if dtype in {torch.uint8, torch.bool}:
            values = values.abs()
        return values if dtype == values.dtype else values.to(dtype)

    def _drawn(self, argument: Argument) -> torch.dtype:
        """Return the dtype that values are drawn in."""
        dtype = dtype_of(argument, self.case)
        return torch.float32 if dtype == torch.float64 or not argument.is_float else dtype

    def _sizes(self, argument: Argument) -> tuple[int, ...]:
        return tuple(dim.size(self.case.dims) for dim in argument.free_dims)

    def _make_loud(self, values: Tensor, loud: Tensor) -> None:
        if not len(loud):
            return
        louder = values.index_select(0, loud) * 2.0**self.loudness
        # float16 ends at 65504: an infinite neighbour would be another transform.
        limit = torch.finfo(values.dtype).max
        values.index_copy_(0, loud, louder.clamp_(min=-limit, max=limit))


def _recipe_of(argument: Argument, case: Case) -> Recipe:
    recipes = case.data if argument.token_axis else case.policy_state
    if argument.name in recipes:
        return recipes[argument.name]
    if argument.is_float:
        where = "data" if argument.token_axis else "policy_state"
        raise CaseError(f"Tensor '{argument.name}' has no recipe: give one in {where}.")
    return _WHOLE


def _target_of(argument: Argument, signature: Signature) -> str:
    """Return the name of the target token of each row: ids over the last dimension; else empty."""
    if not argument.token_axis or not argument.free_dims:
        return ""
    last = argument.free_dims[-1].text
    for other in signature.arguments:
        if other.kind == "token" and other.parameter == last and not other.free_dims:
            return other.name
    return ""


def upstream_outputs(kernel: Kernel, judged: Judged) -> tuple[Argument, ...]:
    """Return the float outputs that a gradient flows into."""
    if judged == "outputs":
        return ()
    taken = None
    if kernel.backward_signature is not None:
        taken = {argument.name for argument in kernel.backward_signature.arguments}
    return tuple(
        output
        for output in kernel.signature.judged_outputs
        if output.is_float and (taken is None or f"d{output.name}" in taken)
    )
