"""Transforms and their data: a wrong value is refused, and none is lost."""

import pytest

from biprop.case import TransformData, TransformValue
from biprop.errors import CaseError
from biprop.transforms import AddNeighbours, PadSlots, transform_from_data, transform_to_data


class TestReading:
    """Transforms are read from their data once."""

    @pytest.mark.parametrize("values", [{"count": True}, {"count": "1"}], ids=str)
    def test_what_looks_like_it_is_no_other_value(self, values: dict[str, TransformValue]) -> None:
        """A wrong type is refused, though an equal value was read before."""
        read = transform_from_data(TransformData(name="AddNeighbours", values={"count": 1}))

        assert read == AddNeighbours(count=1)
        with pytest.raises(CaseError, match="is no int"):
            transform_from_data(TransformData(name="AddNeighbours", values=values))


def test_transform_data_keeps_every_field() -> None:
    """The cases of these tests carry their transforms as a stranger's would."""
    data = transform_to_data(PadSlots(side="left", amount=3, fill="nan"))

    assert data == TransformData(
        name="PadSlots", values={"side": "left", "amount": 3, "fill": "nan"}
    )
