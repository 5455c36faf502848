"""What assertions return: outputs, gradients of tokens and gradients of parameters, each by itself.

Made from the reports of cells; how cells are told stands in `biprop.reports.text`.
"""

from collections.abc import Mapping

import attrs

from biprop.case import Judged
from biprop.judgment import Verdict
from biprop.reports.records import CellReport, Finding

__all__ = ["ForwardInvarianceReport", "GradientInvarianceReport", "JudgedReport", "judged_report"]


@attrs.frozen(kw_only=True)
class JudgedReport:
    """What became of one thing that is judged, over all cells that judge it.

    Attributes:
        judged: What was compared.
        verdict: HOLDS, the violation of the first finding, FALLBACK, UNSUPPORTED, or VACUOUS where
            evidence is lacking.
        examples: Cases of relation I in which it was compared.
        lacking: By id of the cell, classes with too few powered examples.
        findings: By id of the cell.
    """

    judged: Judged
    verdict: Verdict
    examples: int = 0
    lacking: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    findings: dict[str, tuple[Finding, ...]] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ForwardInvarianceReport:
    """What an assertion about outputs found.

    Attributes:
        cells: Report by id: a form, backend, dtype and direction of the operator.
        outputs: All of them together.
    """

    cells: dict[str, CellReport]
    outputs: JudgedReport

    def text(self) -> str:
        """Return the cells in words, as a failing assertion prints them."""
        return _text(self)


@attrs.frozen(kw_only=True)
class GradientInvarianceReport:
    """What an assertion about gradients found.

    Attributes:
        cells: Report by id: a form, backend, dtype and direction of the operator.
        outputs: Of the forward that gradients were taken of.
        token_gradients: None where the operator has none.
        parameter_gradients: None where the operator has none.
    """

    cells: dict[str, CellReport]
    outputs: JudgedReport
    token_gradients: JudgedReport | None = None
    parameter_gradients: JudgedReport | None = None

    def text(self) -> str:
        """Return the cells in words, as a failing assertion prints them."""
        return _text(self)


def judged_report(cells: Mapping[str, CellReport], judged: Judged) -> JudgedReport | None:
    """Return what cells say of one thing that is judged; None where none of them judges it."""
    found = {name: report for name, report in cells.items() if judged in report.judged}
    if not found:
        return None
    findings = {
        name: tuple(item for item in report.findings if item.fixture.case.judged == judged)
        for name, report in found.items()
    }
    lacking = {name: report.judged[judged].lacking for name, report in found.items()}
    first = next((item for items in findings.values() for item in items), None)
    ended = [report.verdict for report in found.values()]
    if first is not None:
        verdict = first.outcome.verdict
    elif Verdict.FALLBACK in ended:
        verdict = Verdict.FALLBACK
    elif Verdict.UNSUPPORTED in ended:
        verdict = Verdict.UNSUPPORTED
    else:
        verdict = Verdict.VACUOUS if any(lacking.values()) else Verdict.HOLDS
    return JudgedReport(
        judged=judged,
        verdict=verdict,
        examples=sum(report.judged[judged].examples for report in found.values()),
        lacking={name: names for name, names in lacking.items() if names},
        findings={name: items for name, items in findings.items() if items},
    )


def _text(report: ForwardInvarianceReport | GradientInvarianceReport) -> str:
    # The text is made of these records, so its module imports this one.
    from biprop.reports.suite_text import render_judged  # noqa: PLC0415

    return render_judged(report)
