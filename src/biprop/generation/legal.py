"""Whether a case is legal for a kernel: one answer for generator, minimiser, loader and replay.

An illegal case can condemn a healthy kernel, so nobody runs one. What classes apply at all says
`biprop.generation.classes`; values of a wrong type were refused where the records are made.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import attrs

from biprop.case import Case
from biprop.data.recipe import KINDS, SEQUENCES, TOKENS, Recipe
from biprop.errors import BipropError
from biprop.generation.classes import (
    applicability,
    judged_kinds,
    padding_sides,
    takes_order,
)
from biprop.generation.conditioned import unconditioned
from biprop.generation.contexts import (
    FILLS_HARMLESS,
    cut_fault,
    has_rows,
    knows_dead,
    longest_of,
    padding_fault,
)
from biprop.generation.forms import fault_of_form
from biprop.generation.needs import recipes_needed
from biprop.operators import InvarianceDeclaration, Kernel
from biprop.sequence import NEIGHBOUR_ID_FIRST
from biprop.signature import Argument, Restrictions, Signature
from biprop.signature.forms import Forms, FormSignatures
from biprop.signature.query_context import is_even
from biprop.signature.roles import has_contexts
from biprop.transforms import (
    AddDeadRows,
    AddNeighbours,
    GatherActive,
    MoveStorage,
    PackRows,
    PadSlots,
    PlaceWatched,
    ReplaceNeighbours,
    SplitBatch,
    Transform,
    UseForm,
    class_of,
    transforms_of,
)

__all__ = ["alignment", "illegal", "is_blind", "legal_for", "recipes_needed", "stray_point"]

# Bounds of what a case may ask of memory, so that a stranger's case cannot exhaust it.
TOKEN_COUNT_MAX = 1 << 22
ELEMENT_COUNT_MAX = 1 << 28
EXPONENT_MAX = 64

_PACKED = ("packed", "packed_query_context")
_ITEM_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@attrs.frozen(kw_only=True)
class _Rules:
    """What `illegal` is told about the kernel."""

    signature: Signature
    backward_signature: Signature | None
    restrictions: Restrictions
    registered: bool
    declaration: InvarianceDeclaration | None
    align: int
    has_reference: bool
    backends: tuple[str, ...] | None
    forms: Forms | None
    takes_shards: bool | None

    @property
    def own_form(self) -> FormSignatures:
        return FormSignatures(signature=self.signature, backward_signature=self.backward_signature)

    def launched_as(self, form: str) -> "_Rules":
        """Return the rules for what the launches of another form decide."""
        found = (self.forms or {}).get(form, self.own_form)
        return attrs.evolve(
            self, signature=found.signature, backward_signature=found.backward_signature
        )


def illegal(
    signature: Signature,
    case: Case,
    *,
    backward_signature: Signature | None = None,
    restrictions: Restrictions | None = None,
    registered: bool = False,
    declaration: InvarianceDeclaration | None = None,
    align: int = 1,
    has_reference: bool = True,
    backends: tuple[str, ...] | None = None,
    forms: Forms | None = None,
    takes_shards: bool | None = None,
) -> str:
    """Return why `case` is illegal, in one sentence; empty if it is legal.

    Args:
        signature: Forward signature.
        case: The case.
        backward_signature: Of the registered backward; None where autograd differentiates.
        restrictions: Of the free dimensions; None: none.
        registered: Whether the kernel is a registered operator.
        declaration: What it promises; a class beyond it is illegal.
        align: Bytes that base pointers must be aligned to.
        has_reference: Whether relation A can be judged.
        backends: Those that relation P can be judged against; None where they are not known.
        forms: Other forms under the same backend, by name; None where they are not known, so that
            whoever runs the case must ask again.
        takes_shards: Whether the kernel computes as any number of ranks; None where that is not
            known.
    """
    rules = _Rules(
        signature=signature,
        backward_signature=backward_signature,
        restrictions=restrictions or Restrictions(),
        registered=registered,
        declaration=declaration,
        align=align,
        has_reference=has_reference,
        backends=backends,
        forms=forms,
        takes_shards=takes_shards,
    )
    for check in (_dims, _sequences, _recipes, _against, _transforms, _memory):
        try:
            reason = check(case, rules)
        except BipropError as error:
            reason = str(error)
        if reason:
            return reason
    return ""


def legal_for(kernel: Kernel) -> Callable[[Case], str]:
    """Return `illegal` for one kernel: it takes a case, and an empty text means legal."""

    def check(case: Case) -> str:
        return illegal(
            kernel.signature,
            case,
            backward_signature=kernel.backward_signature,
            restrictions=kernel.restrictions,
            registered=kernel.is_registered,
            declaration=kernel.declaration,
            align=kernel.align,
            has_reference=kernel.reference is not None,
            backends=kernel.counterparts,
            forms=kernel.forms,
            takes_shards=kernel.takes_shards,
        )

    return check


def stray_point(case: Case) -> str:
    """Return which listed value lies at a sequence or a token that a case has not; empty if none.

    Such a value is without effect. It makes no case illegal, since shrinking leaves some behind on
    its way.
    """
    longest = longest_of(case)
    lengths = {sequence.id: sequence.length for sequence in case.sequences}
    if case.judged != "parameter_gradients":
        count = sum(item.count for item in transforms_of(case) if isinstance(item, AddNeighbours))
        # How long each of them is decides the seed; none is longer.
        lengths |= dict.fromkeys(range(NEIGHBOUR_ID_FIRST, NEIGHBOUR_ID_FIRST + count), longest)
    for name, recipe in case.data.items():
        for point in (*recipe.points, *(point for row in recipe.rows for point in row.points)):
            sequence, token = point.at.get(SEQUENCES), point.at.get(TOKENS, 0)
            if sequence is not None and sequence not in lengths:
                return f"The recipe of '{name}' has a value at sequence {sequence}, which is none."
            if token >= (longest if sequence is None else lengths[sequence]):
                owner = "no sequence" if sequence is None else f"sequence {sequence} does not"
                verb = "has" if sequence is None else "have"
                return f"The recipe of '{name}' has a value at token {token}, which {owner} {verb}."
    return ""


def is_blind(signature: Signature) -> bool:
    """Return whether rows must be equally long, since not every dead slot could be told."""
    if has_contexts(signature):
        return is_even(signature)
    return signature.layout == "padded" and not padding_sides(signature)


def alignment(signature: Signature, case_dtype: str, align: int) -> int:
    """Return of how many elements a gap must be a multiple to keep `align` bytes."""
    step = 1
    for item in (*signature.arguments, *signature.outputs):
        if item.is_float:
            size = _ITEM_SIZES[case_dtype if item.kind == "float" else item.kind]
            step = math.lcm(step, align // math.gcd(align, size))
    return step


def _dims(case: Case, rules: _Rules) -> str:
    signature = rules.signature
    names = signature.free_dims
    for name in names:
        if name not in case.dims:
            return f"Dimension {name} has no size: give {name} a size of 1 or more."
    for name, size in case.dims.items():
        if name not in names:
            return f"Dimension {name}={size} is not in the signature: drop it."
        if size < 1:
            return f"Dimension {name}={size} is too small: give it a size of 1 or more."
    broken = rules.restrictions.violation(case.dims)
    if broken:
        return f"Dimension {broken}."
    for item in (*signature.arguments, *signature.outputs):
        for dim in item.free_dims:
            if dim.size(case.dims) < 1:
                return f"Dimension {dim.text} of '{item.name}' has size 0."
    return ""


def _sequences(case: Case, rules: _Rules) -> str:
    sequences = case.sequences
    if not sequences:
        return "The case has no sequence: give one."
    if len({sequence.id for sequence in sequences}) < len(sequences):
        return "Two sequences have the same id: give every sequence its own."
    if max(sequence.id for sequence in sequences) >= NEIGHBOUR_ID_FIRST:
        return f"A sequence has an id of {NEIGHBOUR_ID_FIRST} or more, which only neighbours have."
    fault = _fault_of_lengths(case, rules.signature)
    if fault:
        return fault
    if not 0 <= case.seed < 1 << 32:
        return f"Seed {case.seed} is outside of 0..{(1 << 32) - 1}."
    if case.shared_prefix < 0:
        return f"shared_prefix={case.shared_prefix} is negative: give 0 or more."
    if case.execution.threads < 1:
        return f"threads={case.execution.threads} is too small: give 1 or more."
    kinds = judged_kinds(
        rules.signature, case.direction, backward_signature=rules.backward_signature
    )
    if case.judged not in kinds:
        return f"The kernel has no {case.judged.replace('_', ' ')} to judge."
    scalars = {item.name for item in rules.signature.scalars}
    if scalars != set(case.scalars):
        odd = min(scalars ^ set(case.scalars))
        return f"Scalar '{odd}' is in only one of signature and case."
    if not all(math.isfinite(value) for value in case.scalars.values()):
        return "A scalar is not finite: give a number."
    return ""


def _fault_of_lengths(case: Case, signature: Signature) -> str:
    if is_blind(signature) and len({sequence.length for sequence in case.sequences}) > 1:
        return "Sequences differ in length, and the signature has nothing to tell dead slots by."
    return ""


def _recipes(case: Case, rules: _Rules) -> str:
    needed = recipes_needed(rules.signature, case.judged, rules.backward_signature)
    known, optional = recipes_needed(rules.signature, case.judged)
    tokens = {item.name: item for item in rules.signature.arguments if item.kind == "token"}
    allowed = ({**known, **tokens}, optional)
    for given, wanted, may in zip((case.data, case.policy_state), needed, allowed, strict=True):
        for name in wanted:
            if name not in given:
                return f"Tensor '{name}' has no recipe: give one."
        for name, recipe in given.items():
            if name not in may:
                return f"The recipe of '{name}' belongs to no tensor: drop it."
            fault = _fault_of_recipe(recipe, may[name])
            if fault:
                return f"The recipe of '{name}' {fault}."
    return ""


def _fault_of_recipe(recipe: Recipe, item: Argument, *, nested: bool = False) -> str:
    axes = {dim.text for dim in item.free_dims}
    if item.token_axis:
        axes |= {TOKENS, SEQUENCES}
    if recipe.kind not in KINDS:
        return f"has the unknown kind {recipe.kind!r}"
    if (recipe.kind == "mix") != bool(recipe.rows) or (nested and recipe.rows):
        return "needs rows for kind mix, and only there"
    if abs(recipe.exponent) > EXPONENT_MAX:
        return f"has exponent={recipe.exponent}, beyond {EXPONENT_MAX}"
    for axis, pairing in recipe.pairing.items():
        if axis not in axes:
            return f"pairs the axis {axis!r}, which the tensor has not"
        masked = pairing.role in {"antisymmetric", "symmetric"}
        if masked != (pairing.mask > 0) or pairing.mask < 0:
            return f"pairs {axis!r} as {pairing.role} with mask={pairing.mask}"
    if recipe.points and recipe.kind != "explicit":
        return "has points, which only kind explicit has"
    for point in recipe.points:
        if not set(point.at) <= axes or any(index < 0 for index in point.at.values()):
            return f"has a point at {point.at}, where the tensor has no element"
        if not _is_number(point.value):
            return f"has the value {point.value!r}, which is no hexadecimal float"
    return next(filter(None, (_fault_of_recipe(row, item, nested=True) for row in recipe.rows)), "")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float.fromhex(text))
    except (ValueError, OverflowError):
        return False


def _against(case: Case, rules: _Rules) -> str:
    """Refuse a case of relation A or P that could condemn a healthy kernel, or has no yardstick."""
    against = case.against
    if against is None:
        return ""
    what = f"Relation {against.name}"
    if not rules.registered:
        return f"{what} is judged of registered operators only."
    if case.transforms:
        return f"{what} compares canonical runs: take the transforms out."
    if not all(0 <= number < math.inf for number in (against.atol, against.rtol)):
        return f"{what} has atol={against.atol} and rtol={against.rtol}: give numbers of 0 or more."
    if against.relation == "A" and (against.backend or not rules.has_reference):
        return f"{what} needs an operator with a reference, and no backend beside it."
    known = (against.backend,) if rules.backends is None else rules.backends
    if against.relation == "P" and (not against.backend or against.backend not in known):
        return f"{what} needs another backend of the operator, with a backward of the same kind."
    if any(item.marked for item in rules.signature.arguments):
        return f"{what} needs outputs that are returned, and the operator writes into arguments."
    if case.execution.has_reduced_precision:
        words = ", ".join(case.execution.words)
        return f"{what} is judged with sums in float32: switch {words} off."
    if against.probe:
        # That it is one of the contract's is asked by whoever judges it.
        return "" if against.relation == "A" else f"{what} has no probes."
    return unconditioned(rules.signature, case, backward_signature=rules.backward_signature)


def _transforms(case: Case, rules: _Rules) -> str:
    transforms = transforms_of(case)
    form = _form_of(transforms)
    if form:
        fault = _fault_of_use(form, case, rules)
        if fault or rules.forms is None:
            return f"{UseForm.__name__} (T6) is not possible: {fault}." if fault else ""
        rules = rules.launched_as(form)
        fault = _fault_of_lengths(case, rules.signature)
        if fault:
            return fault
    shards = rules.takes_shards
    reasons = applicability(
        rules.signature,
        judged=case.judged,
        backward_signature=rules.backward_signature,
        registered=rules.registered,
        declaration=rules.declaration,
        takes_shards=rules.registered if shards is None else shards,
    )
    for transform in transforms:
        if isinstance(transform, UseForm):
            continue
        name = class_of(transform)
        reason = reasons[name]
        # T2 and T3 beside a missing T1 are without effect, which is no fault of the case.
        reason = reason or _fault_of_transform(transform, case, rules)
        if reason:
            return f"{type(transform).__name__} ({name}) is not possible: {reason}."
    return ""


def _form_of(transforms: Iterable[Transform]) -> str:
    """Return the name of the form that launches a case; empty: its own."""
    return next((item.form for item in transforms if isinstance(item, UseForm)), "")


def _fault_of_use(form: str, case: Case, rules: _Rules) -> str:
    if not rules.registered:
        return "only a registered operator has other forms"
    if rules.forms is None:
        return ""
    if form not in rules.forms:
        known = ", ".join(sorted(rules.forms)) or "none"
        return (
            f"the operator has no other form {form!r} under its backend, of which there are {known}"
        )
    fault = fault_of_form(rules.own_form, rules.forms[form], case.judged)
    if fault:
        return fault
    reasons = applicability(
        rules.signature,
        judged=case.judged,
        backward_signature=rules.backward_signature,
        registered=rules.registered,
        declaration=rules.declaration,
        forms=rules.forms,
    )
    return reasons["T6"]


def _fault_of_transform(transform: Transform, case: Case, rules: _Rules) -> str:
    signature = rules.signature
    gradients = case.judged == "parameter_gradients"
    match transform:
        case PadSlots() | AddDeadRows():
            return _fault_of_padding(transform, case, rules)
        case PlaceWatched() if gradients:
            return "gradients of parameters have no neighbours"
        case ReplaceNeighbours(length=length, spread=spread) if is_blind(signature):
            if spread or length not in {0, case.sequences[0].length}:
                return "neighbours differ in length, and nothing tells dead slots"
        case GatherActive() if not signature.token_wise:
            return "a launch needs every token of its sequences"
        case PackRows() if not has_contexts(signature):
            return "there are no rows of queries and contexts"
        case SplitBatch() if has_contexts(signature):
            return cut_fault(transform, case, signature)
        case GatherActive(scatter=scatter) if scatter:
            target = rules.backward_signature or signature
            if target.sequence_wise and not target.has_order:
                return "scattered tokens cannot be found by a target that does not take their order"
        case MoveStorage(gap=gap):
            # An offset is rounded up to `align` where tensors are placed; a gap moves every row.
            step = alignment(signature, case.dtype, rules.align)
            if gap % step:
                return f"gap={gap} must be a multiple of {step} to keep align={rules.align}"
        case _:
            pass
    return ""


def _fault_of_padding(transform: PadSlots | AddDeadRows, case: Case, rules: _Rules) -> str:
    signature = rules.signature
    if case.judged == "parameter_gradients":
        target = rules.backward_signature or signature
        if not knows_dead(target) and transform.fill not in FILLS_HARMLESS:
            return (
                f"fill={transform.fill} could spoil gradients of parameters of a target that takes "
                "neither mask nor offsets"
            )
    if isinstance(transform, AddDeadRows):
        return "" if has_rows(signature) else "nothing makes rows of tokens, so there are no rows"
    if has_contexts(signature):
        fault = padding_fault(
            transform,
            signature,
            judged=case.judged,
            dtype=case.dtype,
            is_cut=any(item.name == SplitBatch.__name__ for item in case.transforms),
        )
        if fault:
            return fault
    elif transform.contexts_only:
        return "there are no contexts"
    sides: Sequence[str] = padding_sides(signature, rules.backward_signature)
    if case.judged == "parameter_gradients" and not (
        rules.registered or takes_order(signature, rules.backward_signature)
    ):
        # Dead slots before or between live ones move the terms of a sum over tokens.
        sides = ("right",) if signature.layout in _PACKED else ()
    if not sides:
        return "nothing tells dead slots from live ones"
    if transform.side not in sides:
        return f"dead slots may lie on the {sides[0]} only"
    return ""


def _memory(case: Case, rules: _Rules) -> str:
    """Refuse what would not fit, before anything is expanded."""
    extent = _extent_of(case)
    signature = rules.launched_as(_form_of(transforms_of(case))).signature
    slots = extent.tokens + extent.amount
    if signature.layout in {"padded", "query_context"}:
        slots = extent.rows * extent.width
    if slots > TOKEN_COUNT_MAX:
        return f"The case has {slots} slots, more than {TOKEN_COUNT_MAX}: make it smaller."
    elements = 0
    for item in (*signature.arguments, *signature.outputs):
        own = math.prod(dim.size(case.dims) for dim in item.free_dims)
        elements += own * (slots if item.token_axis else 1)
    if has_contexts(signature):
        # A mask of all pairs, or scores of that size inside of the target.
        packed = signature.layout == "packed_query_context"
        row = extent.width * extent.per_row
        pairs = slots * (slots if packed and signature.has_mask else row)
        elements += pairs * max(
            (
                math.prod(dim.size(case.dims) for dim in item.free_dims[:-1])
                for item in signature.token_arguments
            ),
            default=1,
        )
    if elements > ELEMENT_COUNT_MAX:
        return f"The case has {elements} elements, more than {ELEMENT_COUNT_MAX}: make it smaller."
    return ""


@attrs.frozen(kw_only=True)
class _Extent:
    """How large the launches of a case may be together.

    Attributes:
        tokens: Of all sequences.
        rows: Sequences and dead rows.
        width: Slots of the longest sequence.
        amount: Dead slots beside it.
        per_row: Sequences of a row.
    """

    tokens: int
    rows: int
    width: int
    amount: int
    per_row: int


def _extent_of(case: Case) -> _Extent:
    longest = max(sequence.length for sequence in case.sequences)
    tokens, rows = sum(sequence.length for sequence in case.sequences), len(case.sequences)
    neighbour, amount, dead, count, per_row = longest, 0, 0, 0, 1
    for transform in transforms_of(case):
        match transform:
            case AddNeighbours():
                count = transform.count
            case ReplaceNeighbours():
                neighbour = (transform.length or longest) + transform.spread
            case PadSlots():
                amount = transform.amount
            case AddDeadRows():
                dead = transform.count
            case PackRows():
                per_row = transform.per_row
            case _:
                pass
    return _Extent(
        tokens=tokens + count * neighbour,
        rows=rows + count + dead,
        width=max(longest, neighbour if count else 0) + amount,
        amount=amount,
        per_row=min(per_row, rows + count),
    )
