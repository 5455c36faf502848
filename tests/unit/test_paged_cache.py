"""The account that a paged cache keeps: who holds which page, and what is refused.

The bits of its device functions are in test_paged_kernels.py; here the torch backend runs.
"""

from collections.abc import Callable

import attrs
import pytest
import torch
from tests.unit.kernel_trials import all_same
from tests.unit.paged_trials import Beside, offsets_of, paged, tokens_of
from torch import Tensor

from biprop.errors import UsageError
from biprop.kernels.paged.cache import PagedCache
from biprop.kvcache.shape import FILLS, CacheLayout, CacheShape, Fill

SHAPE = CacheShape(block_size=4, block_count=8, query_heads=2, heads=1, width=3)


@pytest.fixture
def beside() -> Beside:
    """Return an empty cache of 8 pages of 4 tokens."""
    return Beside.of("torch", SHAPE)


class TestFork:
    """A fork shares pages until one of the two writes."""

    @pytest.mark.parametrize(("at", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (6, 2)])
    def test_a_fork_takes_no_page(self, beside: Beside, at: int, pages: int) -> None:
        """The first pages of the parent, the partial one too, and none beyond them."""

        beside.allocate("s0")
        beside.append(s0=6)
        free = list(beside.cache.free_pages)
        beside.fork("s1", "s0", at)
        assert beside.cache.free_pages == free
        assert beside.cache.tables["s1"] == beside.cache.tables["s0"][:pages]
        assert beside.misread() == beside.broken() == []

    def test_who_writes_first_copies_the_partial_page(self, beside: Beside) -> None:
        """The fork takes one page of its own; then its parent, alone again, writes in place."""

        beside.allocate("s0")
        beside.append(s0=6)
        beside.fork("s1", "s0", 5)
        before = list(beside.cache.tables["s0"])
        assert beside.append(s1=1) == []
        assert beside.cache.tables["s1"] == [before[0], 2]
        assert beside.append(s0=1) == []
        assert beside.cache.tables["s0"] == before
        assert beside.cache.references[:3] == [2, 1, 1]
        assert beside.misread() == beside.broken() == []

    def test_the_parent_copies_where_it_writes_first(self, beside: Beside) -> None:
        """The fork keeps the page, with what the parent left behind its own tokens."""

        beside.allocate("s0")
        beside.append(s0=3)
        beside.fork("s1", "s0", 2)
        assert beside.decode("s0") == []
        assert (beside.cache.tables["s0"], beside.cache.tables["s1"]) == ([1], [0])
        assert beside.misread() == beside.broken() == []

    @pytest.mark.parametrize("order", [("s0", "s1", "s2"), ("s2", "s1", "s0"), ("s1", "s0", "s2")])
    def test_all_may_write_in_one_call(self, beside: Beside, order: tuple[str, ...]) -> None:
        """The last of three writes in place, to a page that the others copied before."""

        beside.allocate("s0")
        beside.append(s0=3)
        beside.fork("s1", "s0", 1)
        beside.fork("s2", "s1", 1)
        assert beside.decode(*order) == []
        assert beside.cache.tables[order[2]] == [0]
        assert beside.misread() == beside.broken() == []

    def test_no_page_is_copied_at_the_edge_of_one(self, beside: Beside) -> None:
        """A prefix of whole pages stays shared whoever writes."""

        beside.allocate("s0")
        beside.append(s0=8)
        beside.fork("s1", "s0", 4)
        assert beside.decode("s1", "s0") == []
        assert beside.cache.tables == {"s0": [0, 1, 3], "s1": [0, 2]}
        assert beside.misread() == beside.broken() == []

    def test_nothing_is_copied_for_no_tokens(self, beside: Beside) -> None:
        """An append of 0 tokens to a shared partial page changes nothing."""

        beside.allocate("s0")
        beside.append(s0=2)
        beside.fork("s1", "s0", 2)
        assert beside.append(s1=0) == []
        assert beside.cache.tables == {"s0": [0], "s1": [0]}


class TestReuse:
    """Pages come back dirty, the last one first."""

    def test_the_last_page_given_back_is_taken_first(self, beside: Beside) -> None:
        """Of two freed sequences the first page of the second one."""

        beside.allocate("s0", "s1", "s2")
        beside.append(s0=5, s1=5)
        beside.free("s0")
        beside.free("s1")
        assert beside.cache.free_pages[-4:] == [1, 0, 3, 2]
        beside.append(s2=9)
        assert beside.cache.tables["s2"] == [2, 3, 0]
        assert beside.broken() == []

    def test_nothing_is_set_to_zero(self, beside: Beside) -> None:
        """The slots behind a new token hold what the page held before."""

        beside.allocate("s0", "s1")
        beside.append(s0=4)
        k, v = beside.stored("s0")
        beside.free("s0")
        beside.append(s1=1)
        assert beside.cache.tables["s1"] == [0]
        assert all_same(beside.cache.pages.k[0, 1:], k[1:])
        assert all_same(beside.cache.pages.v[0, 1:], v[1:])

    def test_what_is_shared_outlives_its_first_owner(self, beside: Beside) -> None:
        """A freed and an evicted parent leave the pages of a fork alone."""

        beside.allocate("s0")
        beside.append(s0=11)
        beside.fork("s1", "s0", 10)
        beside.evict("s0", 5)
        assert beside.misread() == beside.broken() == []
        assert beside.append(s0=7) == []
        beside.free("s0")
        beside.allocate("s2")
        assert beside.append(s2=20) == []
        assert beside.misread() == beside.broken() == []

    def test_a_sequence_may_be_evicted_altogether(self, beside: Beside) -> None:
        """It keeps its name, and its tokens may come again."""

        beside.allocate("s0")
        beside.append(s0=6)
        beside.evict("s0", 6)
        assert beside.cache.tables["s0"] == [0, 1]
        beside.evict("s0", 0)
        assert len(beside.cache.free_pages) == 8
        assert beside.append(s0=3) == []
        assert beside.misread() == beside.broken() == []


class TestDefragment:
    """Pages move together, with every table that holds them."""

    def test_pages_follow_each_other(self, beside: Beside) -> None:
        """Those of a sequence in its order, shared ones once, the free ones last."""

        beside.allocate("s0", "s1", "s2")
        beside.append(s0=5, s1=4, s2=6)
        beside.free("s0")
        beside.fork("s3", "s2", 5)
        beside.append(s1=5)
        assert beside.cache.tables == {"s1": [2, 0, 1], "s2": [3, 4], "s3": [3, 4]}
        beside.cache.defragment()
        assert beside.cache.tables == {"s1": [0, 1, 2], "s2": [3, 4], "s3": [3, 4]}
        assert beside.cache.free_pages == [7, 6, 5]
        assert beside.misread() == beside.broken() == []
        assert beside.decode("s3", "s1", "s2") == []
        assert beside.misread() == beside.broken() == []

    def test_pages_that_change_places_keep_their_bits(self, beside: Beside) -> None:
        """Two pages that take each other's place are both read before either is written."""

        beside.allocate("s0", "s1", "s2")
        beside.append(s2=1)
        beside.append(s0=1, s1=4)
        beside.free("s2")
        beside.append(s1=2)
        beside.free("s0")
        beside.append(s1=4)
        assert beside.cache.tables["s1"] == [2, 0, 1]
        beside.cache.defragment()
        assert beside.cache.tables["s1"] == [0, 1, 2]
        assert beside.misread() == beside.broken() == []


class TestPoison:
    """Memory that no token occupies can be overwritten, and only that."""

    @pytest.mark.parametrize("fill", FILLS)
    @pytest.mark.parametrize("layout", ["NHD", "HND"])
    def test_every_dead_slot_and_no_other_is_overwritten(
        self, layout: CacheLayout, fill: Fill
    ) -> None:
        """Free pages, the end of partial ones, and what an eviction left in a shared one."""

        beside = Beside.of("torch", attrs.evolve(SHAPE, layout=layout))
        beside.allocate("s0", "s1")
        beside.append(s0=7, s1=2)
        beside.fork("s2", "s0", 6)
        beside.evict("s0", 5)
        # Of pages 0 to 2: 4 of 4 slots, 2 of 4, and 2 of 4 live.
        live = torch.zeros(8, 4, dtype=torch.bool)
        live[0], live[1, :2], live[2, :2] = True, True, True
        before = beside.cache.pages.k.clone()
        beside.cache.pages.k[~live] = 0.5
        assert beside.cache.poison(fill)
        for side in (beside.cache.pages.k, beside.cache.pages.v):
            assert self.is_filled(side[~live], fill)
        assert all_same(beside.cache.pages.k[live], before[live])
        assert beside.misread() == []

    @staticmethod
    def is_filled(values: Tensor, fill: Fill) -> bool:
        """Return whether values are what is asked for."""
        if fill == "garbage":
            return (
                bool(values.isfinite().all())
                and len(set(values.flatten().tolist())) > values.numel() // 2
            )
        said = {"zero": values == 0, "inf": values.isinf(), "nan": values.isnan()}
        return bool(said[fill].all())


def taken(beside: Beside, count: int, *, heads: int = 1) -> Tensor:
    """Return tokens that a call may take."""
    return tokens_of(attrs.evolve(beside.cache.shape, heads=heads), count, seed=9)[1]


def append(beside: Beside, sequences: tuple[str, ...], *ends: int, count: int = 3) -> None:
    """Append tokens with the offsets given."""
    tokens = taken(beside, count)
    beside.cache.append(sequences, tokens, tokens, torch.tensor(ends, dtype=torch.int32))


def decode(beside: Beside, *sequences: str) -> None:
    """Decode one token of each."""
    q, k, v = tokens_of(SHAPE, len(sequences), seed=9)
    beside.cache.decode(sequences, q, k, v)


def attend(beside: Beside, *ends: int, count: int) -> None:
    """Attend from tokens of one sequence."""
    q = tokens_of(SHAPE, count, seed=9)[0]
    beside.cache.attend(("s0",), q, torch.tensor(ends, dtype=torch.int32))


def mixed(beside: Beside) -> None:
    """Append keys of one count and values of another."""
    beside.cache.append(("s0",), taken(beside, 2), taken(beside, 3), offsets_of((2,)))


ILLEGAL: dict[str, tuple[Callable[[Beside], object], str]] = {
    "name in use": (lambda beside: beside.cache.allocate("s0"), "'s0', which exists"),
    "fork in use": (lambda beside: beside.cache.fork("s1", "s0", 1), "'s1', which exists"),
    "no parent": (lambda beside: beside.cache.fork("s9", "s8", 0), "no sequence 's8'"),
    "fork too far": (lambda beside: beside.cache.fork("s9", "s0", 7), "choose 0 to 6"),
    "fork before": (lambda beside: beside.cache.fork("s9", "s0", -1), "choose 0 to 6"),
    "evict too far": (lambda beside: beside.cache.evict("s0", 7), "choose 0 to 6"),
    "evict nobody": (lambda beside: beside.cache.evict("s8", 0), "no sequence 's8'"),
    "free nobody": (lambda beside: beside.cache.free("s8"), "no sequence 's8'"),
    "read nobody": (lambda beside: beside.cache.read("s8"), "no sequence 's8'"),
    "length of nobody": (lambda beside: beside.cache.length("s8"), "no sequence 's8'"),
    "append to nobody": (lambda beside: append(beside, ("s0", "s8"), 0, 1, 3), "no sequence 's8'"),
    "twice": (lambda beside: append(beside, ("s0", "s0"), 0, 1, 3), "once at most"),
    "decode twice": (lambda beside: decode(beside, "s0", "s1", "s0"), "once at most"),
    "too few offsets": (lambda beside: append(beside, ("s0", "s1"), 0, 3), "do not fit 2"),
    "no offsets": (lambda beside: append(beside, (), count=0), "do not fit 0"),
    "tokens of nobody": (lambda beside: append(beside, (), 0), "do not fit 0"),
    "offsets from 1": (lambda beside: append(beside, ("s0",), 1, 3), "do not fit"),
    "offsets go back": (lambda beside: append(beside, ("s0", "s1"), 0, 3, 2), "do not fit"),
    "offsets too far": (lambda beside: append(beside, ("s0",), 0, 4), "do not fit"),
    "counts differ": (mixed, "v has shape [3, 1, 3]"),
    "other heads": (
        lambda beside: beside.cache.append(
            ("s0",), taken(beside, 1, heads=2), taken(beside, 1, heads=2), offsets_of((1,))
        ),
        "k has shape [1, 2, 3]",
    ),
    "other dtype": (
        lambda beside: beside.cache.append(
            ("s0",), taken(beside, 1).double(), taken(beside, 1).double(), offsets_of((1,))
        ),
        "takes [1, 1, 3] and torch.float32",
    ),
    "more queries than tokens": (
        lambda beside: attend(beside, 0, 7, count=7),
        "7 tokens of sequence 's0', of which 6 are stored",
    ),
    "no room": (
        lambda beside: append(beside, ("s1", "s0"), 0, 20, 23, count=23),
        "takes 7 more pages, but 6 of 8 are free",
    ),
}


class TestRefusals:
    """What cannot be done is refused in one sentence, and nothing has changed."""

    @pytest.mark.parametrize("illegal", ILLEGAL)
    def test_a_refused_call_changes_nothing(self, beside: Beside, illegal: str) -> None:
        """Neither the account nor one bit of memory."""

        beside.allocate("s0")
        beside.append(s0=6)
        beside.fork("s1", "s0", 2)
        before = self.snapshot(beside.cache)
        call, words = ILLEGAL[illegal]
        with pytest.raises(UsageError) as caught:
            call(beside)
        assert words in str(caught.value)
        assert str(caught.value).endswith(".")
        account, memory = self.snapshot(beside.cache)
        assert account == before[0]
        assert all(map(all_same, memory, before[1]))

    @staticmethod
    def snapshot(cache: PagedCache) -> tuple[str, tuple[Tensor, Tensor]]:
        """Return the account in words, in its order, and a copy of memory."""
        account = (cache.tables, cache.lengths, cache.references, cache.free_pages)
        return repr(account), (cache.pages.k.clone(), cache.pages.v.clone())

    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            (CacheShape(block_size=0), "block_size=0"),
            (CacheShape(block_count=0), "block_count=0"),
            (CacheShape(width=0), "width=0"),
            (CacheShape(query_heads=3, heads=2), "query_heads=3 is no multiple of heads=2"),
            (CacheShape(dtype="bfloat16"), "storage=float32 is wider than dtype=bfloat16"),
        ],
    )
    def test_a_shape_that_cannot_be_is_refused(self, shape: CacheShape, words: str) -> None:
        """Before memory is allocated."""

        with pytest.raises(UsageError, match=words):
            paged("torch", shape)


class TestRoom:
    """The last page can be used, and one page more cannot."""

    @staticmethod
    def sharing(block_count: int) -> Beside:
        """Let three sequences share a partial page, and a fourth one have none."""
        beside = Beside.of("torch", attrs.evolve(SHAPE, block_count=block_count))
        beside.allocate("s0", "s3")
        beside.append(s0=6)
        beside.fork("s1", "s0", 5)
        beside.fork("s2", "s0", 6)
        return beside

    def test_a_shared_partial_page_is_copied_for_all_but_one(self) -> None:
        """All four write in one call: two copies and one new page, and not one page to spare."""

        beside = self.sharing(5)
        assert beside.decode("s1", "s3", "s0", "s2") == []
        assert beside.cache.free_pages == []
        assert beside.misread() == beside.broken() == []

    def test_one_page_less_does_not_suffice(self) -> None:
        """And what was refused as a whole may be done in part."""

        beside = self.sharing(4)
        with pytest.raises(UsageError, match="takes 3 more pages, but 2 of 4 are free"):
            decode(beside, "s1", "s3", "s0", "s2")
        assert beside.broken() == []
        assert beside.decode("s1", "s0", "s2") == []
        assert beside.misread() == beside.broken() == []

    def test_every_page_can_be_used(self, beside: Beside) -> None:
        """All 32 slots of 8 pages; for one token more there is no room until one is free."""

        beside.allocate("s0", "s1")
        assert beside.append(s0=31, s1=0) == []
        assert beside.decode("s0") == []
        assert beside.cache.free_pages == []
        with pytest.raises(UsageError, match="takes 1 more pages, but 0 of 8 are free"):
            decode(beside, "s1")
        beside.evict("s0", 28)
        assert beside.decode("s1") == []
        assert beside.misread() == beside.broken() == []
