"""A stand-alone script that shows a finding with torch and the target alone, without biprop.

The launches of both configurations are made here, and their arguments are written into the script
value by value. Needs torch, but neither runs nor imports the target. The text around the values
stands in `script.py.j2`.
"""

import pprint
from collections import Counter

import attrs
import jinja2
from torch import Tensor

from biprop.case import Case, SdpaBackend
from biprop.errors import UnsupportedError
from biprop.execution import Prepared, prepare
from biprop.execution.arguments import Materialiser
from biprop.execution.frame import Frame, slot_axes, to_slots
from biprop.execution.values import dtype_of
from biprop.fixtures.records import Fixture
from biprop.judgment import BitDifference, Verdict
from biprop.layout import CANONICAL, Layout
from biprop.operators import Kernel
from biprop.reports.words import case_in_words, data_in_words, plain, transforms_in_words
from biprop.signature import Argument, Signature, parse_restrictions, parse_signature, parse_target

__all__ = ["VALUES_MAX", "render_script"]

VALUES_MAX = 20_000
_RUNS_MAX = 200
_BOUNDARY = 256
# As `biprop.execution.untouched` says it.
_WRITES = "The target writes into argument "

_Spec = dict[str, object]
_Launch = dict[str, list[object]]


def render_script(fixture: Fixture) -> str:
    """Return the script. Run, it prints both bit patterns and exits 1 while they differ, else 0.

    Raises:
        UnsupportedError: The target is an operator of biprop itself, what differs is no plain
            output, or the tensors hold too many values to be written out.
    """
    _refuse(fixture)
    case, signature = fixture.case, parse_signature(fixture.signature)
    kernel = _kernel(fixture, signature)
    prepared = prepare(kernel, case, device="cpu")
    crashes = fixture.expect.verdict is Verdict.CRASHES
    first = None if crashes else _first(fixture)
    written = _Written()
    transformed = [
        written.launch(_materialiser(prepared, prepared.layout), signature, frame, case)
        for frame in _needed(prepared.transformed_frames(), first)
    ]
    canonical = []
    if first is not None:
        frame = prepared.canonical_frames()[_canonical_launch(case, first)]
        canonical.append(written.launch(_materialiser(prepared, CANONICAL), signature, frame, case))
    target = parse_target(fixture.target)
    return _template().render(
        # A stranger's words: one line of printable ASCII each, and only in comments.
        words=[
            plain(f"{fixture.expect.verdict} of {fixture.operator}, fixture {fixture.id}."),
            plain(f"Signature: {signature.text}."),
            f"Case: {case_in_words(case, signature)}.",
            f"Data: {data_in_words(case)}.",
            f"Transforms: {transforms_in_words(case)}.",
        ],
        place=repr(target.file or target.module),
        is_file=target.file is not None,
        name=repr(target.name),
        call=repr(dict(fixture.call)),
        device=repr(fixture.provenance.device.partition(":")[0]),
        execution=case.execution,
        sdpa=repr(_sdpa(case.execution.sdpa_backend)),
        backward=case.judged != "outputs",
        crashes=crashes,
        repeated=fixture.expect.verdict is Verdict.NONDETERMINISTIC,
        runs=_RUNS_MAX,
        canonical=_literal(canonical),
        transformed=_literal(transformed),
        read=_literal(
            _differentiated(signature, is_parameter=case.judged == "parameter_gradients")
            if first is None
            else _read(fixture, signature, first)
        ),
        expected=_literal(
            None if first is None else (first.canonical_bits, first.transformed_bits)
        ),
    )


def _refuse(fixture: Fixture) -> None:
    """Raise where no script can show without biprop what biprop saw."""
    if fixture.reference.is_registered:
        raise UnsupportedError(
            f"Operator {fixture.operator} is part of biprop, so no script can do without biprop: "
            f"use `biprop show {fixture.id[:8]} --issue`."
        )
    if fixture.backward_signature:
        raise UnsupportedError(
            "The target has a backward kernel of its own, which only biprop can call: use --issue."
        )
    if _WRITES in fixture.expect.message and fixture.expect.verdict is Verdict.CRASHES:
        raise UnsupportedError(
            "The target writes into an argument, which only biprop watches: use --issue."
        )


def _sdpa(wanted: SdpaBackend) -> dict[str, bool]:
    """Return which attention backends are on, by the names that torch has for their switches."""
    names: dict[str, SdpaBackend] = {
        "math": "math",
        "flash": "flash",
        "mem_efficient": "efficient",
        "cudnn": "cudnn",
    }
    return {name: backend == wanted for name, backend in names.items()}


def _kernel(fixture: Fixture, signature: Signature) -> Kernel:
    def absent(*_: object, **__: object) -> object:
        raise AssertionError("nothing is launched here")

    return Kernel(
        target=fixture.target,
        operator=fixture.operator,
        signature=signature,
        function=absent,
        restrictions=parse_restrictions(fixture.dims),
        align=fixture.align,
        call=fixture.call,
    )


def _first(fixture: Fixture) -> BitDifference:
    if not fixture.expect.mismatches:
        raise UnsupportedError("The fixture records no difference of an output: use --issue.")
    mismatch = fixture.expect.mismatches[0]
    if mismatch.output.endswith(")"):
        raise UnsupportedError(f"What differs is {mismatch.output}, no output: use --issue.")
    return mismatch.first


def _needed(frames: list[Frame], first: BitDifference | None) -> list[Frame]:
    """Return the launch that differs; all of them where one crashes."""
    return frames if first is None else [frames[max(0, first.transformed_launch)]]


def _canonical_launch(case: Case, first: BitDifference) -> int:
    ids = [sequence.id for sequence in case.sequences]
    return ids.index(first.sequence_id) if first.sequence_id >= 0 else 0


def _materialiser(prepared: Prepared, layout: Layout) -> Materialiser:
    return Materialiser(
        case=prepared.case,
        values=prepared.values,
        layout=layout,
        align=prepared.kernel.align,
        poison="large" if layout.storage.dirty else "nan",
    )


def _read(fixture: Fixture, signature: Signature, first: BitDifference) -> _Spec:
    """Return where the first difference is read: which value, and how its slots lie."""
    output = fixture.expect.mismatches[0].output
    backward = fixture.case.judged != "outputs"
    arguments = [argument.name for argument in signature.arguments]
    returned = [item.name for item in signature.outputs]
    if backward:
        source, index = "gradient", arguments.index(output.removeprefix("d"))
        item = signature.arguments[index]
    elif output in returned:
        source, index = "returned", returned.index(output)
        item = signature.outputs[index]
    else:
        source, index = "argument", arguments.index(output)
        item = signature.arguments[index]
    has_rows = item.token_axis is not None
    return {
        "source": source,
        "index": index,
        "coordinate": first.coordinate,
        "order": to_slots(item) if has_rows else [],
        "slot_axes": len(slot_axes(item)) if has_rows else 0,
        "canonical_slot": first.canonical_row,
        "transformed_slot": first.transformed_row,
        **_differentiated(signature, is_parameter=item.token_axis is None),
    }


def _differentiated(signature: Signature, *, is_parameter: bool) -> _Spec:
    """Return which arguments have gradients, and which outputs have upstream ones."""
    return {
        "differentiated": [
            place
            for place, argument in enumerate(signature.arguments)
            if argument.is_float and (argument.token_axis is None) == is_parameter
        ],
        "outputs": [
            place
            for place, found in enumerate(signature.outputs)
            if found.is_float and not found.ignored
        ],
    }


def _expected(output: Argument, frame: Frame, case: Case) -> _Spec:
    """Return what a launch must return for one output, as `biprop.execution.outputs` asks it."""
    return {
        "name": output.name,
        "shape": frame.shape_of(output, case.dims),
        "dtype": str(dtype_of(output, case)).removeprefix("torch."),
    }


@attrs.define(kw_only=True, eq=False)
class _Written:
    """Counts the values that are written out."""

    count: int = 0

    def launch(
        self, materialiser: Materialiser, signature: Signature, frame: Frame, case: Case
    ) -> _Launch:
        """Return one launch as literals: arguments, and upstream gradients of float outputs."""
        given = [self._argument(value) for value in materialiser.arguments(signature, frame)]
        upstream: list[object] = []
        if case.judged != "outputs":
            upstream = [
                self._argument(materialiser.upstream(signature, output, frame))
                for output in signature.outputs
                if output.is_float and not output.ignored
            ]
        return {
            "arguments": given,
            "upstream": upstream,
            "outputs": [
                None if output.ignored else _expected(output, frame, case)
                for output in signature.outputs
            ],
        }

    def _argument(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        dtype = str(value.dtype).removeprefix("torch.")
        flat = _plain_values(value)
        base = Counter(flat).most_common(1)[0][0] if flat else 0
        others = {index: item for index, item in enumerate(flat) if item != base}
        self.count += len(others)
        if self.count > VALUES_MAX:
            raise UnsupportedError(
                f"The tensors hold more than {VALUES_MAX} values that differ from one another: "
                "use --issue."
            )
        return {
            "dtype": dtype,
            "shape": tuple(value.shape),
            "stride": value.stride(),
            # Elements past a boundary, which decides whether wide loads are used.
            "offset": value.data_ptr() % _BOUNDARY // value.element_size(),
            "base": base,
            "others": others,
        }


def _plain_values(value: Tensor) -> list[int | str]:
    """Return values by flat index: whole numbers, or floats as `float.hex` writes them."""
    if value.dtype.is_floating_point:
        return [number.hex() for number in value.double().flatten().tolist()]
    return [int(number) for number in value.flatten().tolist()]


def _literal(value: object) -> str:
    return pprint.pformat(value, width=100, compact=True, sort_dicts=False)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(  # noqa: S701  # Python, not HTML; every value is a literal
        loader=jinja2.PackageLoader("biprop.reports", ""),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("script.py.j2")
