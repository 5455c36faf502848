"""Devices of a run of tests/props: counted, shared between workers, and refused early."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.gpu.conftest import pytest_configure as configure_gpu_tests
from tests.gpu.conftest import pytest_ignore_collect as leaves_out_gpu_tests
from tests.preloaded import Preloaded
from tests.unit.test_pytest_plugin import ROOT, run

from biprop.machine import WORKERS_PER_DEVICE, count_devices
from biprop.pytest_plugin import pytest_configure_node, pytest_xdist_auto_num_workers
from biprop.pytest_plugin.devices import (
    DEVICES_KEY,
    check_device,
    device_of,
)


class Config:
    """What these functions ask of pytest's own configuration."""

    def __init__(self, device: str, worker: dict[str, object] | None = None) -> None:
        """Ask for a device, as a worker of a parallel run or as its controller."""
        self.stash = pytest.Stash()
        self.args = ["tests/gpu/test_memory.py::test_x"]
        self.invocation_params = SimpleNamespace(dir=ROOT)
        self._device = device
        if worker is not None:
            self.workerinput = worker

    def getoption(self, name: str) -> str:
        """Return the device."""
        assert name == "--biprop-device"
        return self._device


def config(device: str, worker: dict[str, object] | None = None) -> pytest.Config:
    """Return a configuration for the functions under test."""
    return Config(device, worker)  # type: ignore[return-value]  # as far as they ask


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that there are two devices; the list loses one number each time they are counted."""
    counts = [2, 2]
    monkeypatch.setattr("biprop.pytest_plugin.devices.count_devices", counts.pop)
    monkeypatch.setattr("biprop.pytest_plugin.devices.core_count", lambda: 1000)
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    return counts


class TestWorkers:
    """How many workers `-n auto` means, and which has which device."""

    def test_each_device_is_shared_by_several(self, counted: list[int]) -> None:
        """Devices are counted once a run."""
        shared = config("cuda")

        assert pytest_xdist_auto_num_workers(shared) == 2 * WORKERS_PER_DEVICE
        assert pytest_xdist_auto_num_workers(shared) == 2 * WORKERS_PER_DEVICE
        assert counted == [2]

    @pytest.mark.usefixtures("counted")
    def test_one_device_that_is_named_is_one(self) -> None:
        """`cuda:1` asks for one device, however many there are."""
        assert pytest_xdist_auto_num_workers(config("cuda:1")) == WORKERS_PER_DEVICE

    @pytest.mark.usefixtures("counted")
    def test_cores_bound_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker needs a core."""
        monkeypatch.setattr("biprop.pytest_plugin.devices.core_count", lambda: 3)

        assert pytest_xdist_auto_num_workers(config("cuda")) == 3

    @pytest.mark.usefixtures("counted")
    def test_others_say_it_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On the CPU, and where the environment says it, pytest-xdist decides."""
        assert pytest_xdist_auto_num_workers(config("cpu")) is None
        monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "5")
        assert pytest_xdist_auto_num_workers(config("cuda")) is None

    def test_workers_are_spread_in_turn(self) -> None:
        """The first worker has the first device, and so on, around."""
        inputs: list[dict[str, object]] = [{"workerid": f"gw{number}"} for number in range(4)]
        for given in inputs:
            given[DEVICES_KEY] = 2

        assert [device_of(config("cuda", given)) for given in inputs] == [
            "cuda:0",
            "cuda:1",
            "cuda:0",
            "cuda:1",
        ]
        assert [device_of(config("cuda:1", given)) for given in inputs] == ["cuda:1"] * 4

    @pytest.mark.usefixtures("counted")
    def test_controller_tells_the_number(self) -> None:
        """Workers need not count again, and on the CPU nothing is told."""
        told: dict[str, object] = {}
        pytest_configure_node(SimpleNamespace(config=config("cuda"), workerinput=told))
        untold: dict[str, object] = {}
        pytest_configure_node(SimpleNamespace(config=config("cpu"), workerinput=untold))

        assert told == {DEVICES_KEY: 2}
        assert untold == {}

    def test_a_single_device_keeps_its_name(self) -> None:
        """Without a parallel run, and with one device, `cuda` is `cuda`."""
        alone: dict[str, object] = {"workerid": "gw3", DEVICES_KEY: 1}

        assert device_of(config("cuda")) == device_of(config("cuda", alone)) == "cuda"


class TestRefusal:
    """What cannot be used is one sentence."""

    @pytest.mark.usefixtures("counted")
    def test_device_beyond_the_last_is_refused(self) -> None:
        """The sentence names the last one."""
        check_device(config("cuda:1"))
        with pytest.raises(
            pytest.UsageError, match="the last of the 2 CUDA devices here is cuda:1"
        ):
            check_device(config("cuda:2"))

    def test_counting_needs_no_torch_here(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A child counts, and devices that are hidden from it do not count."""
        (tmp_path / "torch.py").write_text(
            "import os\n"
            "class cuda:\n"
            "    device_count = lambda: len(os.environ['CUDA_VISIBLE_DEVICES'].split(','))\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0")
        counted = count_devices()
        (tmp_path / "torch.py").write_text("raise ImportError\n")

        assert (counted, count_devices()) == (3, 0)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("--biprop-device", "nosuch"), "--biprop-device 'nosuch' is unknown"),
            (("--biprop-device", "cuda", "-n", "auto"), "torch sees no CUDA device here; use cpu"),
            (("--biprop-operators", "zzz", "-n", "2"), "'zzz', which is not registered"),
        ],
    )
    def test_option_is_refused_before_collection(
        self, tmp_path: Path, arguments: tuple[str, ...], sentence: str, preloaded: Preloaded
    ) -> None:
        """Exit status 4, one sentence, and no worker has started."""
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "package").mkdir()
        done = run(tmp_path, *arguments, preloaded=preloaded, CUDA_VISIBLE_DEVICES="")

        assert done.status == 4
        assert [line for line in done.output.splitlines() if line.strip()] == [
            next(line for line in done.output.splitlines() if sentence in line)
        ]
        assert done.output.startswith("ERROR: ")


class TestFolderOfTheDevice:
    """`tests/gpu` is a part of runs that name a device, and of no other."""

    def test_it_is_left_out_without_a_device(self) -> None:
        """A run over all tests has no skips from it; a run with a device has all of it."""
        assert leaves_out_gpu_tests(config("cpu")) is True
        assert leaves_out_gpu_tests(config("cuda:1")) is None

    def test_naming_it_without_a_device_is_refused(self) -> None:
        """Whoever asks for it must not take silence for success."""
        with pytest.raises(pytest.UsageError, match="add --biprop-device cuda"):
            configure_gpu_tests(config("cpu"))
        configure_gpu_tests(config("cuda"))
