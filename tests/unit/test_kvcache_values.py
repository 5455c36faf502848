"""What tokens bring: values by key, the small model, and data that show another order of keys."""

import attrs
import pytest
import torch
from tests.unit.program_samples import program_of

from biprop.bits import same_bits
from biprop.data.recipe import Recipe
from biprop.generation import RandomDraw
from biprop.kernels import OPERATORS
from biprop.kernels.attention import OPERATOR as ATTENTION
from biprop.kvcache.converting import program_from_data, program_to_data
from biprop.kvcache.data import draw_program_data
from biprop.kvcache.finishing import is_conditioned
from biprop.kvcache.prefills import kernel_of, order_power
from biprop.kvcache.tokens import SmallModel
from biprop.kvcache.values import Drawn, Rows, SequenceValues
from biprop.operators import Registry

CPU = torch.device("cpu")
PACKED = kernel_of(ATTENTION, form="packed", backend="torch")
MODEL = program_of(vocabulary=7, heads=2, query_heads=4)


def small(*, width: int = 4) -> SmallModel:
    """Return a small model of the sample program."""
    program = attrs.evolve(MODEL, shape=attrs.evolve(MODEL.shape, width=width))
    return SmallModel(program, Registry(operators=OPERATORS), backend="torch", device=CPU)


def assert_same(one: Rows, other: Rows) -> None:
    """Two runs of tokens have the same bits."""
    assert len(one) == len(other)
    for left, right in ((one.q, other.q), (one.k, other.k), (one.v, other.v)):
        assert same_bits(left, right).all()


class TestValues:
    """Values of sequences."""

    def test_growing_changes_nothing(self) -> None:
        """A token has the same values however many others were asked for before."""

        program = program_of(heads=2, query_heads=4)
        step = SequenceValues(Drawn(program, CPU), 3)
        for count in (1, 2, 30, 33, 80):
            step.upto(count)

        assert_same(step.upto(80), SequenceValues(Drawn(program, CPU), 3).upto(80))

    @pytest.mark.parametrize("kind", ["normal", "peak_keys", "swamp"])
    def test_length_of_the_sequence_changes_nothing(self, kind: str) -> None:
        """Kinds that look at a sequence's length are told one that does not grow."""

        program = attrs.evolve(program_of(), data={"k": Recipe(kind=kind)})
        source = Drawn(program, CPU)

        assert_same(source.rows(1, 0, 4)[:2], source.rows(1, 0, 2))

    def test_fork_has_the_values_of_its_parent_first(self) -> None:
        """After the fork point come values of the fork's own source, at their positions."""

        source = Drawn(program_of(), CPU)
        parent = SequenceValues(source, 0)
        fork = SequenceValues(source, 1, prefix=parent.upto(3))

        assert_same(fork.upto(3), parent.upto(3))
        assert_same(fork.upto(6)[3:], source.rows(1, 3, 6))
        assert not same_bits(fork.upto(6).k[3:], parent.upto(6).k[3:]).all()

    def test_tokens_that_were_put_stay(self) -> None:
        """What is put at a position takes the place of what would come there."""

        source = Drawn(program_of(), CPU)
        values = SequenceValues(source, 0)
        other = source.rows(9, 2, 3)
        values.upto(10)
        values.put(other, at=2)

        assert_same(values.upto(3)[2:], other)
        assert_same(values.upto(6)[3:], source.rows(0, 3, 6))

    def test_no_tokens_have_the_right_shape(self) -> None:
        """An empty append has tensors too."""

        rows = SequenceValues(Drawn(program_of(heads=2, query_heads=4), CPU), 0).upto(0)

        assert rows.q.shape == (0, 4, 4)
        assert rows.k.shape == (0, 2, 4)


class TestSmallModel:
    """The model behind programs with a vocabulary."""

    def test_token_does_not_depend_on_its_neighbours(self) -> None:
        """One id alone gives the rows that it gives among others, at its position."""

        model = small()
        rows = model.rows(0, 0, 9)
        assert rows.ids is not None

        assert_same(model.rows_of(rows.ids[4:5], start=4), rows[4:5])
        assert not same_bits(model.rows_of(rows.ids[4:5], start=5).k, rows.k[4:5]).all()

    def test_sizes_are_those_of_the_cache(self) -> None:
        """Queries, keys and values have the cache's heads, and ids lie in the vocabulary."""

        rows = small().rows(2, 3, 8)

        assert rows.q.shape == (5, 4, 4)
        assert rows.k.shape == rows.v.shape == (5, 2, 4)
        assert rows.ids is not None
        assert int(rows.ids.min()) >= 0
        assert int(rows.ids.max()) < 7

    def test_odd_width_has_no_rotation(self) -> None:
        """Where rope cannot be, positions do not matter."""

        model = small(width=3)
        ids = torch.tensor([1, 1])

        k = model.rows_of(ids, start=0).k

        assert same_bits(k[0], k[1]).all()

    def test_greedy_takes_the_first_of_equal_logits(self) -> None:
        """The largest wins, whatever its sign; of equal ones, as 0 and -0, the smaller id."""

        logits = torch.tensor(
            [
                [0.0, 2.0, 2.0, 1.0, -9.0, 0.5, 0.0],
                [-3.0, -1.0, -2.0, -1.0, -5.0, -4.0, -3.0],
                [-1.0, -0.0, -2.0, 0.0, -1.0, -0.5, -3.0],
            ]
        )

        assert small().greedy(logits).tolist() == [1, 1, 1]

    def test_log_probabilities_are_those_of_the_logits(self) -> None:
        """What is taken of the head is a log probability of each id."""

        model = small()
        out = model.rows(0, 0, 4).q
        logits = model.logits(out)
        every = [model.logp(logits, torch.full((4,), one)) for one in range(7)]

        total = torch.stack(every).exp().sum(0)

        assert (total - 1).abs().max() < 1e-5


class TestData:
    """Data that programs draw."""

    DRAWN = tuple(draw_program_data(RandomDraw(seed), length=40) for seed in range(200))

    def test_drawn_data_are_a_program(self) -> None:
        """Whatever is drawn can be written, read and expanded."""

        for data in self.DRAWN:
            program = attrs.evolve(program_of(), data=data)
            assert program_from_data(program_to_data(program)) == program
            Drawn(program, CPU).rows(0, 0, 2)

    def test_accuracy_is_judged_on_a_part(self) -> None:
        """Some data are conditioned, and most are not."""

        programs = [attrs.evolve(program_of(), data=data) for data in self.DRAWN]
        share = sum(is_conditioned(PACKED, program) for program in programs) / len(programs)

        assert 0.1 < share < 0.4

    def test_another_order_shows_in_narrow_results(self) -> None:
        """In bfloat16 twins show what normal values do not."""

        program = program_of(dtype="bfloat16", storage="bfloat16", width=16)
        twins = [data for data in self.DRAWN if "@" in data["k"].pairing]
        twin = next(data for data in twins if data["v"].kind == "swamp")
        powers = []
        for data in ({}, twin):
            one = attrs.evolve(program, data=data)
            powers.append(order_power(PACKED, Drawn(one, CPU).rows(0, 0, 24), one))

        assert powers[0] < 0.1
        assert powers[1] > 0.3
