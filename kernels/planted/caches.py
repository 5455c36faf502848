"""Planted defects of KV caches: what is known of each.

Each cache is a subclass of the healthy `biprop.kernels.planted.paged.TorchCache`, one method or
function away from it. `shortest` is the least number of operations of any program that fails:
`tests/power` holds such a program of each, and tries all programs of fewer operations.
"""

import attrs

from biprop.kernels.planted import caches_attending, caches_pages, caches_tokens
from biprop.kernels.planted.paged import TorchCache
from biprop.kvcache.protocol import CacheFactory, CacheImplementation, CacheOperator

__all__ = ["CACHES", "HEALTHY_CACHE", "PlantedCache"]

HEALTHY_CACHE: CacheFactory = TorchCache.make

_DECODED = ("decode", "rescore")
_GIVEN = ("chunk", "prefix", "reuse", *_DECODED)
_ANY = ("stored", "untouched", "fork", *_GIVEN)


@attrs.frozen(kw_only=True, eq=False)
class PlantedCache:
    """A cache with one known defect.

    Attributes:
        name: Unique among planted caches.
        mechanism: What it does wrong, in a sentence.
        make: Makes an empty cache with the defect.
        checks: Promises by which it shows in programs, whichever of them comes first; an empty one
            where the cache refuses a call.
        shortest: Operations of the shortest program that fails.
        storage: Dtype of what is stored, in which alone it shows; empty: in any.
        verdict: What programs that show it are judged.
    """

    name: str
    mechanism: str
    make: CacheFactory
    checks: tuple[str, ...]
    shortest: int
    storage: str = ""
    verdict: str = "DRIFTS"

    def operator(self, *, healthy: bool = False) -> CacheOperator:
        """Return the cache, or the healthy one in its place, as an unregistered operator."""
        make = HEALTHY_CACHE if healthy else self.make
        implementation = CacheImplementation(backend="torch", make=make)
        return CacheOperator(name=self.name, implementations=(implementation,))


_PAGES = (
    PlantedCache(
        name="stale_page",
        mechanism="A page that was full once is not written again, whoever takes it next.",
        make=caches_tokens.StalePage.make,
        checks=_ANY,
        shortest=5,
    ),
    PlantedCache(
        name="fork_holds_no_whole_block",
        mechanism="A fork of exactly one block does not count as a holder of it.",
        make=caches_pages.ForkHoldsNoWholeBlock.make,
        checks=_ANY,
        shortest=5,
    ),
    PlantedCache(
        name="fork_shares_partial_block",
        mechanism="A fork writes to the partial block that it shares, without a copy.",
        make=caches_pages.ForkSharesPartialBlock.make,
        checks=_ANY,
        shortest=4,
    ),
    PlantedCache(
        name="copy_one_slot_short",
        mechanism="Copy on write leaves out the last slot that is in use.",
        make=caches_pages.CopyOneSlotShort.make,
        checks=_ANY,
        shortest=4,
    ),
    PlantedCache(
        name="copy_after_write",
        mechanism="Copies on write are made after the writes of the same call.",
        make=caches_pages.CopyAfterWrite.make,
        checks=_ANY,
        shortest=4,
    ),
    PlantedCache(
        name="evicts_shared_page",
        mechanism="Eviction frees a page although another sequence holds it.",
        make=caches_pages.EvictsSharedPage.make,
        checks=_ANY,
        shortest=5,
    ),
    PlantedCache(
        name="table_longer_than_used",
        mechanism="Eviction leaves the pages that it gave up in the table, where tokens go next.",
        make=caches_pages.TableLongerThanUsed.make,
        checks=_ANY,
        shortest=4,
    ),
    PlantedCache(
        name="cancelled_page_twice",
        mechanism="Pages of a sequence that was evicted are returned once more when it ends.",
        make=caches_pages.CancelledPageTwice.make,
        checks=_ANY,
        shortest=6,
    ),
    PlantedCache(
        name="free_keeps_last_page",
        mechanism="A sequence that ends within a block never returns the page of it.",
        make=caches_pages.FreeKeepsLastPage.make,
        checks=("",),
        shortest=5,
        verdict="CRASHES",
    ),
    PlantedCache(
        name="defragment_forgets_table",
        mechanism="Defragmentation gives pages new numbers in all tables but the last one.",
        make=caches_pages.DefragmentForgetsTable.make,
        checks=_ANY,
        shortest=4,
    ),
    PlantedCache(
        name="defragment_leaves_partial_page",
        mechanism="Defragmentation moves whole pages, and leaves the slots of partial ones behind.",
        make=caches_pages.DefragmentLeavesPartialPage.make,
        checks=_ANY,
        shortest=4,
    ),
)
_TOKENS = (
    PlantedCache(
        name="boundary_off_by_one",
        mechanism="The first token of a block is written to the block before.",
        make=caches_tokens.BoundaryOffByOne.make,
        checks=_ANY,
        shortest=2,
    ),
    PlantedCache(
        name="rounds_twice",
        mechanism="What is stored in bfloat16 is rounded to float16 first.",
        make=caches_tokens.RoundsTwice.make,
        checks=_ANY,
        shortest=2,
        storage="bfloat16",
    ),
    PlantedCache(
        name="pad_token_stored",
        mechanism="A sequence without tokens in a call has a pad token stored in slot 0 of page 0.",
        make=caches_tokens.PadTokenStored.make,
        checks=_ANY,
        shortest=3,
    ),
    PlantedCache(
        name="positions_from_slot",
        mechanism="Tokens are read in the order of their slots in memory.",
        make=caches_tokens.PositionsFromSlot.make,
        checks=_ANY,
        shortest=5,
    ),
    PlantedCache(
        name="length_before_append",
        mechanism="Decoding reads the length of a sequence before it stores the token.",
        make=caches_tokens.LengthBeforeAppend.make,
        checks=_DECODED,
        shortest=2,
    ),
    PlantedCache(
        name="rows_sorted",
        mechanism="Rows of a decoding step come back in the order in which sequences began.",
        make=caches_tokens.RowsSorted.make,
        checks=_DECODED,
        shortest=3,
    ),
)
_ATTENDING = (
    PlantedCache(
        name="decode_split_by_rows",
        mechanism="Decoding cuts the keys in two halves where it has more than one row.",
        make=caches_attending.DecodeSplitByRows.make,
        checks=_DECODED,
        shortest=4,
    ),
    PlantedCache(
        name="decode_unordered",
        mechanism="Decoding adds two parts of the keys, cut where whoever came first left off.",
        make=caches_attending.DecodeUnordered.make,
        checks=("repeat",),
        shortest=3,
        verdict="NONDETERMINISTIC",
    ),
    PlantedCache(
        name="keys_from_page_start",
        mechanism="Blocks of keys are counted from the start of the page of a call's first query.",
        make=caches_attending.KeysFromPageStart.make,
        checks=_GIVEN,
        shortest=3,
    ),
    PlantedCache(
        name="cascade_by_neighbours",
        mechanism="A first page that all rows of a call share is attended to apart from the rest.",
        make=caches_attending.CascadeByNeighbours.make,
        checks=_GIVEN,
        shortest=4,
    ),
    PlantedCache(
        name="free_slots_times_zero",
        mechanism="Free slots of the last page are read, and their values weighted with zero.",
        make=caches_attending.FreeSlotsTimesZero.make,
        checks=_GIVEN,
        shortest=3,
    ),
    PlantedCache(
        name="heads_in_turn",
        mechanism="Decoding has query heads take context heads in turn, instead of in groups.",
        make=caches_attending.HeadsInTurn.make,
        checks=_DECODED,
        shortest=2,
    ),
    PlantedCache(
        name="decode_before_rounding",
        mechanism="A decoded token attends to its own key and value before they are rounded.",
        make=caches_attending.DecodeBeforeRounding.make,
        checks=_DECODED,
        shortest=2,
        storage="bfloat16",
    ),
    PlantedCache(
        name="table_of_first_row",
        mechanism="Decoding reads all pages but the last through the table of the first row.",
        make=caches_attending.TableOfFirstRow.make,
        checks=_DECODED,
        shortest=4,
    ),
    PlantedCache(
        name="queries_scaled_in_place",
        mechanism="Queries are scaled in the memory of whoever brings them.",
        make=caches_attending.QueriesScaledInPlace.make,
        checks=("input",),
        shortest=2,
    ),
    PlantedCache(
        name="workspace_kept",
        mechanism="Gathered keys and values are kept for calls of the same pages and lengths.",
        make=caches_attending.WorkspaceKept.make,
        checks=_GIVEN,
        shortest=5,
    ),
)

CACHES: tuple[PlantedCache, ...] = (*_PAGES, *_TOKENS, *_ATTENDING)
