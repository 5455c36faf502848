"""The values of a case: every recipe expanded once for all tokens of a pool.

Launches only gather from these (`biprop.execution.arguments`); they never change, so that both
configurations take the same bits.
"""

import attrs
import torch
from torch import Tensor

from biprop.case import Case, Judged
from biprop.data.expand import Tokens, expand, expand_tokens
from biprop.data.recipe import Recipe
from biprop.errors import CaseError
from biprop.layout.pool import TokenPool
from biprop.layout.records import Neighbours
from biprop.operators import Kernel
from biprop.signature import Argument, Signature
from biprop.signature.records import DTYPE_KINDS

__all__ = ["Values", "dtype_of", "values_of"]

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
        largest: The largest value of each integer argument, which its dead slots may hold.
    """

    tokens: dict[str, Tensor]
    parameters: dict[str, Tensor]
    largest: dict[str, int]


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
    maker = _Maker(case=case, pool=pool, device=device, loudness=neighbours.loudness)
    signature = kernel.signature
    made = Values(tokens={}, parameters={}, largest={})
    for argument in signature.arguments:
        # Ids first: recipes may put their peaks at the row's target.
        if argument.kind == "token":
            made.tokens[argument.name] = maker.ids(argument)
            made.largest[argument.name] = case.dims[argument.parameter or ""] - 1
    for argument in signature.arguments:
        if argument.kind not in DTYPE_KINDS or argument.is_supplied_output:
            continue
        recipe = _recipe_of(argument, case)
        target = _target_of(argument, signature, made)
        values = maker.tensor(argument.name, argument, recipe, target)
        (made.tokens if argument.token_axis else made.parameters)[argument.name] = values
        if not argument.is_float:
            made.largest[argument.name] = int(values.max()) if values.numel() else 0
    for output in _upstream(kernel, case.judged):
        name = f"d{output.name}"
        if name not in case.data:
            raise CaseError(f"Upstream gradient '{name}' has no recipe: give one in data.")
        values = maker.tensor(name, output, case.data[name], _target_of(output, signature, made))
        inactive = (~pool.active).nonzero()[:, 0].to(device)
        made.tokens[name] = values.index_fill_(0, inactive, 0)
    return made


@attrs.frozen(kw_only=True, eq=False)
class _Maker:
    case: Case
    pool: TokenPool
    device: torch.device
    loudness: int

    def ids(self, argument: Argument) -> Tensor:
        """Return int64 `[n, *free]` in [0, V)."""
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
        return torch.stack(columns, dim=1).reshape(-1, *sizes).to(self.device)

    def tensor(
        self, name: str, argument: Argument, recipe: Recipe, target: Tensor | None
    ) -> Tensor:
        """Return `[n, *free]`, or `[*dims]` of a parameter."""
        dtype = dtype_of(argument, self.case)
        drawn = torch.float32 if dtype == torch.float64 or not argument.is_float else dtype
        values = expand(
            recipe,
            seed=self.case.seed,
            name=name,
            tokens=self._tokens() if argument.token_axis else None,
            dims=[dim.text for dim in argument.free_dims],
            sizes=self._sizes(argument),
            dtype=drawn,
            target=target,
            device=self.device,
        )
        if argument.is_float and argument.token_axis and self.loudness:
            self._make_loud(values)
        if dtype in {torch.uint8, torch.bool}:
            values = values.abs()
        return values if dtype == drawn else values.to(dtype)

    def _tokens(self) -> Tokens:
        tokens = self.pool.tokens
        return Tokens(
            sequence_id=tokens.sequence_id.to(self.device),
            token=tokens.token.to(self.device),
            length=tokens.length.to(self.device),
        )

    def _sizes(self, argument: Argument) -> tuple[int, ...]:
        return tuple(dim.size(self.case.dims) for dim in argument.free_dims)

    def _make_loud(self, values: Tensor) -> None:
        loud = self.pool.loud.nonzero()[:, 0].to(self.device)
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


def _target_of(argument: Argument, signature: Signature, made: Values) -> Tensor | None:
    """Return the target token of each row, where the signature has ids over the last dimension."""
    if not argument.token_axis or not argument.free_dims:
        return None
    last = argument.free_dims[-1].text
    for other in signature.arguments:
        if other.kind == "token" and other.parameter == last and not other.free_dims:
            return made.tokens[other.name]
    return None


def _upstream(kernel: Kernel, judged: Judged) -> tuple[Argument, ...]:
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
