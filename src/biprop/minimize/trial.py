"""Trials: judge a candidate, and keep it if the cause stays and the declared cost falls.

The state of one minimisation: the best case so far, what was judged already, and the budget. Which
candidates are worth a trial decide the other modules of this folder.
"""

from collections.abc import Callable

import attrs

from biprop.case import Case, canonical_json, case_to_data, value_at, with_value
from biprop.data.recipe import Point
from biprop.errors import BipropError
from biprop.judgment import Outcome
from biprop.minimize.cost import Cost, cost
from biprop.signature import Signature
from biprop.signature.forms import Forms

__all__ = ["Judge", "Legal", "NonZeros", "Trial"]

Judge = Callable[[Case], Outcome]
# Returns one sentence that says why a case is illegal, or nothing.
Legal = Callable[[Case], str]
# Returns the values of a tensor that are not zero, None where there are more than the limit.
NonZeros = Callable[[Case, str, int], tuple[Point, ...] | None]


@attrs.define(kw_only=True, eq=False)
class Trial:
    """One minimisation under way.

    Attributes:
        case: The best case so far; it fails with the cause `key`.
        outcome: Of judging it.
        key: The cause that every accepted case keeps.
        signature: What the cost is counted by.
        backward_signature: None where autograd differentiates or outputs are judged.
        judge: Gives the outcome of a case.
        legal: Says why a case is illegal.
        clock: Seconds, from anywhere.
        runs_max: Cases that may be judged.
        seconds_max: Seconds that may pass.
        fit: Makes what a smaller case must have besides: cases of relations A and P are scaled with
            their sizes. None: nothing.
        forms: Other forms of the operator, by name.
        runs: Cases judged.
    """

    case: Case
    outcome: Outcome
    key: str
    signature: Signature
    judge: Judge
    legal: Legal
    clock: Callable[[], float]
    runs_max: int
    seconds_max: float
    backward_signature: Signature | None = None
    fit: Callable[[Case], Case] | None = None
    forms: Forms = attrs.field(factory=dict)
    runs: int = 0
    _cost: Cost = attrs.field(init=False)
    _is_by_sign: bool = attrs.field(init=False)
    _start: float = attrs.field(init=False)
    _seen: dict[str, Outcome | None] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Start the clock."""
        self._start = self.clock()
        self._cost = self.cost_of(self.case)
        self._is_by_sign = _is_by_sign(self.outcome)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._start

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        return self.runs >= self.runs_max or self.seconds >= self.seconds_max

    def outcome_of(self, candidate: Case) -> Outcome | None:
        """Return what judging `candidate` gives; None if it is illegal or the budget is spent."""
        name = canonical_json(case_to_data(candidate))
        if name in self._seen:
            return self._seen[name]
        outcome = None
        if not self._reason_against(candidate):
            if self.is_spent:
                return None
            self.runs += 1
            outcome = self.judge(candidate)
        self._seen[name] = outcome
        return outcome

    def keeps_cause(self, candidate: Case) -> bool:
        """Whether `candidate` is legal and fails with the same cause.

        Values that differ stay so: zeros of different sign would need fewer terms, and tell nothing
        of the order in which they are added.
        """
        outcome = self.outcome_of(candidate)
        if outcome is None or outcome.cause is None or outcome.cause.key != self.key:
            return False
        return self._is_by_sign or not _is_by_sign(outcome)

    def cost_of(self, candidate: Case) -> Cost:
        """Return the declared cost of `candidate`."""
        return cost(self.signature, candidate, forms=self.forms)

    def accept(self, candidate: Case) -> bool:
        """Take `candidate` as the best case if its cost is lower and the cause stays."""
        try:
            if self.fit is not None:
                candidate = self.fit(candidate)
            lower = self.cost_of(candidate)
        except BipropError:
            return False
        if lower >= self._cost or not self.keeps_cause(candidate):
            return False
        outcome = self.outcome_of(candidate)
        assert outcome is not None
        self.case, self.outcome, self._cost = candidate, outcome, lower
        return True

    def get(self, path: tuple[int | str, ...]) -> object:
        """Return what the best case holds at a place."""
        return value_at(self.case, path)

    def put(self, path: tuple[int | str, ...], value: object) -> bool:
        """Accept the best case with another value at one place; None takes the place out."""
        try:
            candidate = with_value(self.case, path, value)
        except BipropError:
            return False
        return self.accept(candidate)

    def _reason_against(self, candidate: Case) -> str:
        try:
            return self.legal(candidate)
        except BipropError as error:
            return str(error)


def _is_by_sign(outcome: Outcome) -> bool:
    """Whether all that differs is the sign of zeros."""
    found = outcome.mismatches
    return bool(found) and all(item.max_abs_error == 0 for item in found)
