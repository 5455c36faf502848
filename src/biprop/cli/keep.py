"""`biprop keep`: promote a found fixture to the committed ones."""

from pathlib import Path

import click

from biprop.cli.options import lookup_option
from biprop.cli.output import emit
from biprop.cli.session import named
from biprop.fixtures.store import keep as keep_fixture
from biprop.fixtures.store import project_root

__all__ = ["keep"]


@click.command(short_help="Copy a fixture to the committed ones.")
@click.argument("source", metavar="FILE|ID")
@lookup_option
def keep(source: str, store: Path | None) -> None:
    """Copy a fixture to .hypothesis/fixtures of the project.

    Committed there, it is the first that tests/props runs. ID is the beginning of an id, of at
    least 4 digits.
    """
    root = project_root()
    path = keep_fixture(named(source, store).path, root)
    emit(f"Kept as {path.relative_to(root)}: commit it, and `pytest tests/props` runs it first.\n")
