"""What is known of planted kernels that take something of their surroundings for their own.

The kernels are in `state`, `memory`, `segments`, `positions`, `budgets` and `normalised` of this
folder. Their records are apart, since sizes are mined from the module of a kernel: how far its
smallest failing structure is looked for is no number that a kernel would give away.
"""

from biprop.kernels.planted import budgets, memory, normalised, positions, segments, state
from biprop.kernels.planted.records import Extent, Planted

__all__ = ["SURROUNDINGS"]

_SCAN = (
    "read[B,Q,D], gate[B,C,D], x[B,C,D], queries: lengths(Q)[B], contexts: lengths(C)[B] "
    "-> y[B,Q,D]"
)
_SUM = "read[B,Q,D], x[B,C,D], queries: lengths(Q)[B], contexts: lengths(C)[B] -> y[B,Q,D]"
_ROWS = "x[T,H] -> y[T,H]"
_ONE_QUERY = "q[B,H,D], k[B,C,H,D], v[B,C,H,D], contexts: lengths(C)[B] -> out[B,H,D]"
_WEIGHTED = "x[T,H], weight[H], offsets: offsets[B+1] -> y[T,H]"
_PACKED = "x[T,H], offsets: offsets[B+1] -> y[T,H]"
_PLACED = "x[T,H], position: position[T], offsets: offsets[B+1] -> y[T,H]"
_POOLED = "x[T,H], offsets: offsets[B+1] -> y[B,H]"
_TURNED = "x[B,S,D], position: position[B,S] -> y[B,S,D]; token_local"
_DECAYED = "q[B,D], v[B,C,D], contexts: lengths(C)[B] -> y[B,D]"
_ROUTED = "x[T,H], expert: token(E)[T], weight[E,H] -> y[T,H]"
_MASKED = "x[B,S,H], live: mask[B,S] -> y[B,S,H]"
_LOSSES = "nll[T] -> loss[T]"
_MEANS = "nll[B,S], lengths: lengths[B] -> loss[B]"
_SEGMENT_LOSSES = "nll[T], offsets: offsets[B+1] -> loss[T]"

_STATE = (
    Planted(
        name="state_kept_narrow",
        mechanism="STATE",
        signature=_SUM,
        function=state.state_kept_narrow,
        healthy=state.state_kept_wide,
        exposed_by=("T5",),
        extent=Extent(slots=8, dims={"D": 1}, length=3),
        dims="D=1..8",
    ),
    Planted(
        name="half_block_forgotten",
        mechanism="STATE",
        signature=_SCAN,
        function=state.half_block_forgotten,
        healthy=state.half_block_remembered,
        exposed_by=("T5",),
        extent=Extent(slots=8, dims={"D": 1}, length=3),
        dims="D=1..8",
    ),
    Planted(
        name="state_of_captured_graph",
        mechanism="STATE",
        signature=_SCAN,
        function=state.state_of_captured_graph,
        healthy=state.state_of_any_graph,
        exposed_by=("T5",),
        extent=Extent(slots=17, dims={"D": 1}, sequences=1, length=6),
        dims="D=1..8",
        rare=state.is_captured,
    ),
    Planted(
        name="decode_by_recurrence",
        mechanism="STATE",
        signature=_SCAN,
        function=state.decode_by_recurrence,
        healthy=state.decode_by_scan,
        exposed_by=("T5",),
        extent=Extent(slots=11, dims={"D": 1}, sequences=1, length=4),
        dims="D=1..8",
        conditions=2,
    ),
    Planted(
        name="checkpoint_kept_narrow",
        mechanism="STATE",
        signature=_SUM,
        function=state.checkpoint_kept_narrow,
        healthy=state.checkpoint_kept_wide,
        exposed_by=("T5",),
        extent=Extent(slots=8, dims={"D": 1}, length=3),
        dims="D=1..8",
        direction="backward",
    ),
)
_MEMORY = (
    Planted(
        name="workspace_left_dirty",
        mechanism="MEMB",
        signature=_ROWS,
        function=memory.workspace_left_dirty,
        healthy=memory.workspace_cleared,
        exposed_by=("T1",),
        extent=Extent(slots=22, dims={"H": 1}, transforms=0, sequences=1, length=1),
        rare=memory.is_reused,
    ),
    Planted(
        name="rest_of_page_times_zero",
        mechanism="MEMB",
        signature=_ONE_QUERY,
        function=memory.rest_of_page_times_zero,
        healthy=memory.rest_of_page_left_out,
        exposed_by=("T4.nonfinite",),
        extent=Extent(slots=5, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
        conditions=2,
    ),
    Planted(
        name="partner_of_last_key",
        mechanism="MEMB",
        signature=_ONE_QUERY,
        function=memory.partner_of_last_key,
        healthy=memory.last_key_alone,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=5, dims={"H": 1, "D": 1}, length=3),
        dims="H=1..4 D=1..8",
    ),
    Planted(
        name="weight_gradient_times_mask",
        mechanism="MEMB",
        signature=_WEIGHTED,
        function=memory.weight_gradient_times_mask,
        healthy=memory.weight_gradient_of_live_rows,
        exposed_by=("T4.nonfinite",),
        extent=Extent(slots=3, dims={"H": 2}),
        direction="backward",
    ),
)
_SEGMENTS = (
    Planted(
        name="documents_as_bool",
        mechanism="SEGM",
        signature=_PACKED,
        function=segments.documents_as_bool,
        healthy=segments.documents_as_numbers,
        exposed_by=("T1", "T2"),
        extent=Extent(slots=4, dims={"H": 1}, sequences=3, length=2),
        dims="H=1..64",
    ),
    Planted(
        name="starts_where_positions_fall",
        mechanism="SEGM",
        signature=_PLACED,
        function=segments.starts_where_positions_fall,
        healthy=segments.starts_where_offsets_say,
        exposed_by=("T1", "T2"),
        extent=Extent(slots=4, dims={"H": 1}, sequences=2, length=2),
        dims="H=1..64",
    ),
    Planted(
        name="one_start_a_tile",
        mechanism="SEGM",
        signature=_PACKED,
        function=segments.one_start_a_tile,
        healthy=segments.all_starts_of_a_tile,
        exposed_by=("T1", "T2"),
        extent=Extent(slots=4, dims={"H": 1}, sequences=3, length=3),
        dims="H=1..64",
        conditions=2,
    ),
    Planted(
        name="short_segment_as_tile",
        mechanism="SEGM",
        signature=_POOLED,
        function=segments.short_segment_as_tile,
        healthy=segments.short_segment_as_it_is,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=10, dims={"H": 1}, transforms=0, length=9),
        dims="H=1..64",
        rare=segments.is_summed_by_tile,
    ),
    Planted(
        name="gradient_over_boundaries",
        mechanism="SEGM",
        signature=_PACKED,
        function=segments.gradient_over_boundaries,
        healthy=segments.gradient_in_segments,
        exposed_by=("T1", "T2", "T3"),
        extent=Extent(slots=3, dims={"H": 1}),
        dims="H=1..64",
        direction="backward",
    ),
)
_POSITIONS = (
    Planted(
        name="slots_in_captured_graph",
        mechanism="POS",
        signature=_TURNED,
        function=positions.slots_in_captured_graph,
        healthy=positions.positions_in_any_graph,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=9, dims={"D": 1}, sequences=1, length=8),
        dims="D=1..64",
        rare=positions.is_without_positions,
    ),
    Planted(
        name="position_of_longest_row",
        mechanism="POS",
        signature=_DECAYED,
        function=positions.position_of_longest_row,
        healthy=positions.position_of_own_row,
        exposed_by=("T1", "T3"),
        extent=Extent(slots=9, dims={"D": 1}, length=2, sequences=3),
        dims="D=1..8",
        conditions=2,
    ),
    Planted(
        name="gradient_turned_by_slot",
        mechanism="POS",
        signature=_TURNED,
        function=positions.gradient_turned_by_slot,
        healthy=positions.gradient_turned_by_position,
        exposed_by=("T4.finite", "T4.nonfinite"),
        extent=Extent(slots=3, dims={"D": 1}),
        dims="D=1..64",
        direction="backward",
    ),
)
_BUDGETS = (
    Planted(
        name="experts_of_four_slots",
        mechanism="CAP",
        signature=_ROUTED,
        function=budgets.experts_of_four_slots,
        healthy=budgets.experts_with_all_slots,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=5, dims={"E": 1, "H": 1}, length=4),
        dims="E=1..16",
    ),
    Planted(
        name="pages_rounded_down",
        mechanism="CAP",
        signature=_ROWS,
        function=budgets.pages_rounded_down,
        healthy=budgets.pages_of_all_rows,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=9, dims={"H": 1}, transforms=0, length=8),
        conditions=2,
    ),
    Planted(
        name="workspace_of_bucket",
        mechanism="CAP",
        signature=_ROWS,
        function=budgets.workspace_of_bucket,
        healthy=budgets.workspace_of_rows,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=9, dims={"H": 1}, transforms=0, length=8),
        rare=budgets.is_short_bucket,
    ),
    Planted(
        name="slots_of_five_tokens",
        mechanism="CAP",
        signature=_MASKED,
        function=budgets.slots_of_five_tokens,
        healthy=budgets.slots_of_all_tokens,
        exposed_by=("T1", "T2", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=6, dims={"H": 1}, length=3),
        dims="H=1..64",
    ),
    Planted(
        name="gradient_of_saved_rows",
        mechanism="CAP",
        signature=_ROWS,
        function=budgets.gradient_of_saved_rows,
        healthy=budgets.gradient_of_all_rows,
        exposed_by=("T1", "T2", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=7, dims={"H": 1}, length=6),
        direction="backward",
    ),
)
_NORMALISED = (
    Planted(
        name="loss_by_launch",
        mechanism="NORM",
        signature=_LOSSES,
        function=normalised.loss_by_launch,
        healthy=normalised.loss_by_total,
        exposed_by=("T1", "T4.finite", "T4.nonfinite", "T5", "T6"),
        extent=Extent(slots=2, dims={}),
    ),
    Planted(
        name="mean_over_longest",
        mechanism="NORM",
        signature=_MEANS,
        function=normalised.mean_over_longest,
        healthy=normalised.mean_over_own_length,
        exposed_by=("T1", "T3", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=3, dims={}),
    ),
    Planted(
        name="loss_by_micro_batch",
        mechanism="NORM",
        signature=_LOSSES,
        function=normalised.loss_by_micro_batch,
        healthy=normalised.loss_of_whole_micro_batches,
        exposed_by=("T2",),
        extent=Extent(slots=33, dims={}, transforms=0, length=32),
        rare=normalised.leaves_one_row,
    ),
    Planted(
        name="loss_divided_twice",
        mechanism="NORM",
        signature=_LOSSES,
        function=normalised.loss_divided_twice,
        healthy=normalised.loss_divided_once,
        exposed_by=("T1", "T3"),
        extent=Extent(slots=17, dims={}, transforms=0, length=1),
        conditions=2,
    ),
    Planted(
        name="gradient_by_segments",
        mechanism="NORM",
        signature=_SEGMENT_LOSSES,
        function=normalised.gradient_by_segments,
        healthy=normalised.gradient_by_total,
        exposed_by=("T1", "T4.finite", "T4.nonfinite"),
        extent=Extent(slots=2, dims={}),
        direction="backward",
    ),
)

SURROUNDINGS = (
    *_STATE,
    *_MEMORY,
    *_SEGMENTS,
    *_POSITIONS,
    *_BUDGETS,
    *_NORMALISED,
)
