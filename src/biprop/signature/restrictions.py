"""Read what the user allows of the dimensions: `H=1..8192 H%8==0 D=16|32|64 HQ%HK==0`.

Sizes are only admitted or refused here; `biprop.generation` draws them.
"""

import math
import re
from collections.abc import Mapping

import attrs

from biprop.errors import RestrictionError
from biprop.signature.records import TOKEN_AXES, Signature
from biprop.signature.words import (
    NUMBER_MAX,
    checked_text,
    fault_of_name,
    nearest,
    number_of,
    quoted,
)

__all__ = ["Domain", "Remainder", "Restrictions", "parse_restrictions"]

TERM_COUNT_MAX = 64
# Pairs of sizes that are tried before a restriction of two names is taken to be satisfiable.
PAIR_COUNT_MAX = 65_536

_SPACED_OPERATOR = re.compile(r" ?(==|<=|>=|!=|=|%|\.\.|\||<|>) ?")
_DOMAIN = re.compile(r"(?P<name>[^=%|.<>!]*)=(?P<values>[0-9]+(?:\.\.[0-9]+|(?:\|[0-9]+)*))")
_REMAINDER = re.compile(r"(?P<name>[^=%|.<>!]*)%(?P<divisor>[^=%|.<>!]*)==(?P<remainder>[0-9]+)")
_FORMS = "write NAME=low..high, NAME=size|size, NAME%divisor==0 or NAME%NAME==0"


@attrs.frozen(kw_only=True)
class Domain:
    """The sizes that one dimension may have, remainders apart.

    Attributes:
        name: The dimension.
        low: Least size.
        high: Greatest size.
        choices: The only sizes, ascending; empty if all from `low` to `high` are allowed.
    """

    name: str
    low: int = 1
    high: int = NUMBER_MAX
    choices: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The domain as the notation writes it."""
        if self.choices:
            return f"{self.name}={'|'.join(map(str, self.choices))}"
        return f"{self.name}={self.low}..{self.high}"

    def admits(self, size: int) -> bool:
        """Return whether the dimension may have the size."""
        return size in self.choices if self.choices else self.low <= size <= self.high


@attrs.frozen(kw_only=True)
class Remainder:
    """What must be left when a dimension is divided.

    Attributes:
        name: The dimension.
        divisor: A number, or the name of another dimension.
        remainder: What is left of the division.
    """

    name: str
    divisor: int | str
    remainder: int = 0

    @property
    def text(self) -> str:
        """The condition as the notation writes it."""
        return f"{self.name}%{self.divisor}=={self.remainder}"

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions that the condition is about."""
        return (self.name, self.divisor) if isinstance(self.divisor, str) else (self.name,)

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the condition holds; one about a dimension without a size does."""
        if any(name not in sizes for name in self.names):
            return True
        divisor = sizes[self.divisor] if isinstance(self.divisor, str) else self.divisor
        return sizes[self.name] % divisor == self.remainder


@attrs.frozen(kw_only=True)
class Restrictions:
    """Everything that the user allows of the dimensions.

    Attributes:
        domains: Ranges and choices, one a dimension at most.
        remainders: Conditions on divisions.
    """

    domains: tuple[Domain, ...] = ()
    remainders: tuple[Remainder, ...] = ()

    @property
    def text(self) -> str:
        """The restrictions in the notation, normalised."""
        return " ".join(
            [term.text for term in self.domains] + [term.text for term in self.remainders]
        )

    def domain(self, name: str) -> Domain:
        """Return the sizes of a dimension; from 1 to `NUMBER_MAX` if nothing restricts it."""
        found = (domain for domain in self.domains if domain.name == name)
        return next(found, Domain(name=name))

    def violation(self, sizes: Mapping[str, int]) -> str | None:
        """Say which restriction the sizes break, None if they break none.

        Dimensions without a size are left out, so that sizes may be drawn one after the other.
        """
        for domain in self.domains:
            if domain.name in sizes and not domain.admits(sizes[domain.name]):
                return f"{domain.name}={sizes[domain.name]} is outside of {domain.text}"
        for condition in self.remainders:
            if not condition.admits(sizes):
                found = ", ".join(f"{name}={sizes[name]}" for name in condition.names)
                return f"{found} does not meet {condition.text}"
        return None

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the sizes break no restriction."""
        return self.violation(sizes) is None

    def check_against(self, signature: Signature) -> "Restrictions":
        """Return the restrictions, with the divisions of the signature added.

        A dimension `H/2` of the signature restricts H as `H%2==0` does.

        Raises:
            RestrictionError: A name is no free dimension of the signature, or no size is left.
        """
        known = signature.free_dims
        for domain in self.domains:
            _check_known(domain.name, text=domain.text, known=known)
        for condition in self.remainders:
            for name in condition.names:
                _check_known(name, text=condition.text, known=known)
        divisions = dict.fromkeys(
            Remainder(name=dim.name, divisor=dim.number)
            for item in (*signature.arguments, *signature.outputs)
            for dim in item.free_dims
            if dim.name is not None and dim.operation == "/"
        )
        added = tuple(term for term in divisions if term not in self.remainders)
        if not added:
            return self
        both = attrs.evolve(self, remainders=self.remainders + added)
        _check_satisfiable(both)
        return both


def parse_restrictions(text: str) -> Restrictions:
    """Read restrictions, separated by spaces or commas; an empty text restricts nothing.

    Raises:
        RestrictionError: The text cannot be read, or no size can meet it.

    Example:
        >>> parse_restrictions("H = 1..8192, H % 8 == 0, D=64|16").text
        'H=1..8192 D=16|64 H%8==0'
    """
    text = checked_text(text, what="The text of --dims", error=RestrictionError)
    terms = re.split(r"[ ,;]+", _SPACED_OPERATOR.sub(r"\1", text).strip(" ,;"))
    if terms == [""]:
        return Restrictions()
    if len(terms) > TERM_COUNT_MAX:
        raise RestrictionError(
            f"--dims has {len(terms)} restrictions: write at most {TERM_COUNT_MAX}."
        )
    domains: list[Domain] = []
    remainders: list[Remainder] = []
    for term in terms:
        if match := _REMAINDER.fullmatch(term):
            remainders.append(_remainder(match, term=term))
        elif match := _DOMAIN.fullmatch(term):
            domain = _domain(match, term=term)
            if any(other.name == domain.name for other in domains):
                raise RestrictionError(
                    f"--dims {quoted(term)} restricts {domain.name} a second time: "
                    f"write one range or one list of sizes for {domain.name}."
                )
            domains.append(domain)
        else:
            raise RestrictionError(f"--dims {quoted(term)} cannot be read: {_FORMS}.")
    restrictions = Restrictions(domains=tuple(domains), remainders=tuple(dict.fromkeys(remainders)))
    _check_satisfiable(restrictions)
    return restrictions


def _check_known(name: str, *, text: str, known: tuple[str, ...]) -> None:
    if name in known:
        return
    if name in TOKEN_AXES:
        raise RestrictionError(
            f"--dims {quoted(text)} restricts {name}, which is a token axis and follows from the "
            "sequences: restrict free dimensions only."
        )
    meant = nearest(name, known)
    found = f"write {meant}" if meant else f"the signature has {', '.join(known) or 'none'}"
    raise RestrictionError(
        f"--dims {quoted(text)} restricts {name}, which is no free dimension of the signature: "
        f"{found}."
    )


def _name(text: str, *, term: str) -> str:
    fault = fault_of_name(text)
    if fault:
        raise RestrictionError(f"--dims {quoted(term)} has a name that {fault}: {_FORMS}.")
    return text


def _number(digits: str, *, term: str, least: int = 1) -> int:
    number = number_of(digits, least=least)
    if number is None:
        raise RestrictionError(
            f"--dims {quoted(term)} has the number {quoted(digits)}: "
            f"write an integer from {least} to {NUMBER_MAX}."
        )
    return number


def _domain(match: re.Match[str], *, term: str) -> Domain:
    name, values = _name(match["name"], term=term), match["values"]
    if ".." in values:
        low, high = (_number(digits, term=term) for digits in values.split(".."))
        if low > high:
            raise RestrictionError(
                f"--dims {quoted(term)} is an empty range: write {name}={high}..{low}."
            )
        return Domain(name=name, low=low, high=high)
    sizes = sorted({_number(digits, term=term) for digits in values.split("|")})
    return Domain(name=name, low=sizes[0], high=sizes[-1], choices=tuple(sizes))


def _remainder(match: re.Match[str], *, term: str) -> Remainder:
    name = _name(match["name"], term=term)
    remainder = _number(match["remainder"], term=term, least=0)
    if not match["divisor"].isdigit():
        divisor = _name(match["divisor"], term=term)
        if divisor == name:
            raise RestrictionError(
                f"--dims {quoted(term)} divides {name} by itself: write another divisor."
            )
        return Remainder(name=name, divisor=divisor, remainder=remainder)
    number = _number(match["divisor"], term=term)
    if remainder >= number:
        raise RestrictionError(
            f"--dims {quoted(term)} can never hold: write a remainder below {number}."
        )
    return Remainder(name=name, divisor=number, remainder=remainder)


def _check_satisfiable(restrictions: Restrictions) -> None:
    """Refuse restrictions that no size meets: exact for one name, tried out for two."""
    for condition in restrictions.remainders:
        if _first_size(restrictions, condition.name) is None:
            raise RestrictionError(
                f"--dims leaves no size for {condition.name}, because of {quoted(condition.text)}: "
                "widen its range or drop a condition."
            )
    for condition in restrictions.remainders:
        if not isinstance(condition.divisor, str):
            continue
        first, second = (restrictions.domain(name) for name in condition.names)
        firsts, seconds = _sizes(first), _sizes(second)
        if len(firsts) * len(seconds) > PAIR_COUNT_MAX:
            continue
        if not any(
            restrictions.admits({first.name: one, second.name: two})
            for one in firsts
            for two in seconds
        ):
            raise RestrictionError(
                f"--dims leaves no sizes for {first.name} and {second.name}, because of "
                f"{quoted(condition.text)}: widen a range or drop the condition."
            )


def _sizes(domain: Domain) -> tuple[int, ...] | range:
    return domain.choices or range(domain.low, domain.high + 1)


def _first_size(restrictions: Restrictions, name: str) -> int | None:
    """Return the least size that meets every condition on this name alone."""
    domain = restrictions.domain(name)
    alone = [
        (condition.divisor, condition.remainder)
        for condition in restrictions.remainders
        if condition.name == name and isinstance(condition.divisor, int)
    ]
    if not alone:
        return domain.low
    if domain.choices:
        candidates: tuple[int, ...] | range = domain.choices
    else:
        # Conditions repeat with the least common multiple, and only one size in `step` can meet the
        # coarsest of them.
        step, start = max(alone)
        period = math.lcm(*(divisor for divisor, _ in alone))
        low = domain.low + (start - domain.low) % step
        candidates = range(low, min(domain.high, domain.low + period) + 1, step)
    return next(
        (size for size in candidates if all(size % over == left for over, left in alone)), None
    )
