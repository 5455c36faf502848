"""`biprop show`: print a fixture for people, as an issue block, or as a stand-alone script."""

from pathlib import Path

import click

from biprop.cli.options import lookup_option
from biprop.cli.output import emit
from biprop.cli.session import Named, named
from biprop.errors import UsageError
from biprop.fixtures.programs import AnyFixture, ProgramFixture, read_any
from biprop.reports.issue import render_issue
from biprop.reports.programs import render_program_fixture, render_program_issue
from biprop.reports.text import render_fixture

__all__ = ["show"]


@click.command(short_help="Print a fixture: in words, as an issue, or as a script.")
@click.argument("source", metavar="FILE|ID")
@click.option("--issue", is_flag=True, help="Print the Markdown to paste into an issue.")
@click.option("--script", is_flag=True, help="Print a script that needs only torch and the target.")
@lookup_option
def show(source: str, issue: bool, script: bool, store: Path | None) -> None:
    """Print a fixture: verdict, smallest case, first difference, what was proven.

    The target is neither imported nor run. ID is the beginning of an id, of at least 4 digits.

    With --issue, the text can be given back to `biprop replay -`. With --script, the program that
    is printed shows both bit patterns where biprop is not installed, and exits 1 while they differ.
    """
    if issue and script:
        raise UsageError("--issue and --script print two different things: give one of them.")
    found = named(source, store)
    fixture = read_any(found.path)
    if issue:
        emit(_issue(fixture))
    elif script:
        emit(_script(fixture))
    else:
        emit(_in_words(fixture, found))


def _in_words(fixture: AnyFixture, found: Named) -> str:
    if isinstance(fixture, ProgramFixture):
        return render_program_fixture(
            fixture,
            path=str(found.path),
            source=found.source,
            options=found.options,
            note=found.note,
        )
    return render_fixture(
        fixture, path=str(found.path), source=found.source, options=found.options, note=found.note
    )


def _issue(fixture: AnyFixture) -> str:
    if isinstance(fixture, ProgramFixture):
        return render_program_issue(fixture)
    return render_issue(fixture)


def _script(fixture: AnyFixture) -> str:
    # Scripts are written from expanded values, so these alone need torch.
    if isinstance(fixture, ProgramFixture):
        from biprop.reports.program_script import render_program_script

        return render_program_script(fixture)
    from biprop.reports.script import render_script

    return render_script(fixture)
