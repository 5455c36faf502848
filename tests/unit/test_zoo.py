"""The zoo as a campaign takes it, and the benchmark that tells which kinds of it are found."""

import os
import subprocess
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import get_args

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")

from ci.benchmarks.zoo_campaign import Sought, found_in, main, sought, write_zoo
from tests.unit.campaign_fakes import campaign, epoch, with_cause

from biprop.campaign.records import EpochFinding
from biprop.campaign.registered import registered_cells
from biprop.campaign.store import Store
from biprop.contract import load_contract
from biprop.errors import UsageError
from biprop.kernels import OPERATORS
from biprop.kernels.planted import CHAIN, PLANTED
from biprop.kernels.planted.records import Mechanism
from biprop.loading import load_target
from biprop.operators import Registry
from biprop.power.manifest import parse_manifest
from biprop.power.zoo import manifest_text, zoo_entries, zoo_operators


def named(function: object) -> str:
    """Return the module and the name of a function."""
    return f"{function.__module__}:{function.__qualname__}"  # type: ignore[attr-defined]  # a function


class TestEntries:
    """Planted kernels as a manifest."""

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    def test_a_manifest_reads_back_as_its_entries(self, device: str) -> None:
        """Nothing is lost on the way, and no field is written that a manifest does not have."""

        entries = zoo_entries(device)
        assert entries
        assert parse_manifest(manifest_text(entries), name="zoo.json") == entries

    def test_each_names_the_planted_kernel(self) -> None:
        """What a target is resolved to is the function with the defect, and its twin beside it."""

        entries = {entry.name: entry for entry in zoo_entries("cpu")}
        assert set(entries) == {item.name for item in PLANTED if "cpu" in item.devices}
        for item in PLANTED:
            if "cpu" in item.devices:
                entry = entries[item.name]
                # A kernel of Triton is loaded once more, so that its functions are others.
                assert named(load_target(entry.target)) == named(item.function)
                assert named(load_target(entry.healthy)) == named(item.healthy)
                assert (entry.kind, entry.direction) == (item.mechanism, item.direction)


class TestOperators:
    """Defects of the chain as operators of a package."""

    def test_each_has_cells_where_it_is_broken(self) -> None:
        """Its own form and the torch backend alone, and no gradients that are the healthy ones."""

        registry = Registry(operators=(*OPERATORS, *zoo_operators()))
        names = [defect.name for defect in CHAIN]
        cells = registered_cells(registry, load_contract(), names=names)
        for defect in CHAIN:
            own = [cell.info for cell in cells if cell.info.operator == defect.name]
            assert {info.backend for info in own} == {"torch"}
            assert {info.form for info in own} == {defect.form}
            directions = {info.direction for info in own}
            assert defect.direction in directions
            assert "backward" not in directions or defect.direction == "backward"

    def test_they_break_what_the_defect_breaks(self) -> None:
        """The function of the defect is called, and the operator's own in the other direction."""

        for defect, operator in zip(CHAIN, zoo_operators(), strict=True):
            (form,) = operator.forms
            (item,) = form.implementations
            assert getattr(item, defect.direction) is defect.function
            assert item.forward is not item.backward

    def test_an_unknown_name_is_refused_with_the_one_that_is_meant(self) -> None:
        """Operators and caches are known by name."""

        registry = Registry(operators=OPERATORS)
        with pytest.raises(UsageError, match=r"names 'rms_nrm', which .*: write 'rms_norm'"):
            registered_cells(registry, load_contract(), names=("rms_nrm",))
        with pytest.raises(UsageError, match=r"use .*paged.*silu"):
            registered_cells(registry, load_contract(), names=("zzzz",))


def test_every_kind_of_defect_is_sought() -> None:
    """Kernels of all kinds are in it, inaccurate ones among the operators."""

    assert {item.kind for item in sought("cpu")} == set(get_args(Mechanism))


def test_a_package_names_the_operators(tmp_path: Path) -> None:
    """What is written is found by whoever looks for entry points there."""

    words = write_zoo(tmp_path, "cpu")
    assert parse_manifest(Path(words[1]).read_text(), name="zoo.json") == zoo_entries("cpu")
    (package,) = distributions(path=[str(tmp_path)])
    (point,) = package.entry_points
    assert point.group == "biprop.operators"
    assert {item.name for item in point.load()} == set(words[3].split(","))


WANTED = (
    Sought(name="first", kind="SPLIT", cells="cell0"),
    Sought(name="second", kind="TAIL", cells="cell1"),
)


def filled(path: Path) -> Store:
    """Return a store in which one of two kernels was found, 13 seconds after the start."""
    store = Store.open(path, create=True)
    store.write_campaign(campaign())
    cause = with_cause(store, "cell0")
    shown = (EpochFinding(cause=cause.digest, count=2),)
    store.write_epoch(epoch("cell0", verdict="DRIFTS", findings=shown))
    store.write_epoch(epoch("cell1", number=2))
    return store


def test_what_was_found_is_told_by_kernel(tmp_path: Path) -> None:
    """When its first cause was seen, how many there are, and after how many examples."""

    store = filled(tmp_path / "store")
    first, second = found_in(store.snapshot(), WANTED)
    cause = next(iter(store.causes().values()))
    assert first.seconds == cause.found - campaign().began
    assert (first.causes, first.minimal, first.examples) == (1, 0, 10)
    assert (second.seconds, second.causes, second.examples) == (None, 0, 10)


def test_the_benchmark_says_which_kinds_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs the command that it prints, and its exit status is about all kinds."""

    ran: list[tuple[str, ...]] = []

    def run(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        ran.append(tuple(command))
        filled(tmp_path / "zoo" / "store")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr("ci.benchmarks.zoo_campaign.subprocess.run", run)
    monkeypatch.setattr("ci.benchmarks.zoo_campaign.sought", lambda _: WANTED)
    status = main(["--store", str(tmp_path / "zoo"), "--out", str(tmp_path / "out.json")])
    out = capsys.readouterr().out
    assert status == 1
    assert "biprop fuzz --target" in out
    assert ran[0][3:5] == ("fuzz", "--target")
    assert "SPLIT  1 of 1" in out
    assert "TAIL   0 of 1" in out
    assert "missed second (TAIL): 10 examples" in out
    assert '"name": "second"' in (tmp_path / "out.json").read_text()
