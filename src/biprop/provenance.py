"""Provenance: on what, with what and from which sources something ran.

The only place below the command line that asks the environment. Nothing is decided here: replay
compares two records (`biprop.fixtures.replay`), reports print them. Torch is imported only when it
is asked about.
"""

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import attrs

__all__ = [
    "Provenance",
    "arch_key",
    "collect",
    "commit_of",
    "device_name",
    "environment",
    "file_digest",
    "source_digest",
    "source_sha256",
    "variables",
    "version_of",
]

_SOURCE_SUFFIXES = {".py", ".json", ".j2"}
# Libraries read them when they are loaded, so no switch of a case can undo what they say.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DISABLE_PTXAS_OPT",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
)


@attrs.frozen(kw_only=True)
class Provenance:
    """Where a finding was made.

    Attributes:
        device: As it was asked for, e.g. `cpu` or `cuda:0`.
        device_name: As its maker calls it.
        arch_key: What decides which code runs there, e.g. `cpu-x86_64-avx512` or `cuda-sm90`.
        threads: Intra-op threads of torch.
        switches: Switches of the case that are not as by default, in words.
        environment: `NAME=value` of each variable that is set and may change what kernels compute.
        actual_backend: What ran, e.g. `triton-interpreter`; empty where it is the one asked for.
        biprop: Version of biprop.
        source_digest: SHA-256 of biprop's own sources, its first 16 hexadecimal digits.
        target_digest: Likewise of the file that defines the target; empty where there is none.
        commit: Of the repository that holds the target, with `+` where files differ from it; empty
            where there is no repository.
        python: Version of Python.
        torch: Version of torch.
        triton: Version of Triton; empty where it is not installed.
        platform: Operating system and machine.
    """

    device: str
    device_name: str = ""
    arch_key: str = ""
    threads: int = 1
    switches: str = ""
    environment: str = ""
    actual_backend: str = ""
    biprop: str = ""
    source_digest: str = ""
    target_digest: str = ""
    commit: str = ""
    python: str = ""
    torch: str = ""
    triton: str = ""
    platform: str = ""


def collect(
    device: str,
    *,
    threads: int = 1,
    target_file: Path | None = None,
    actual_backend: str = "",
) -> Provenance:
    """Return what there is to say of this process, `device` and the file of the target."""
    return Provenance(
        device=device,
        device_name=device_name(device),
        arch_key=arch_key(device),
        threads=threads,
        environment=environment(),
        actual_backend=actual_backend,
        biprop=version_of("biprop"),
        source_digest=source_digest(),
        target_digest="" if target_file is None else file_digest(target_file),
        commit=commit_of(Path.cwd() if target_file is None else target_file.parent),
        python=platform.python_version(),
        torch=version_of("torch"),
        triton=version_of("triton"),
        platform=f"{platform.system()} {platform.machine()}",
    )


def environment() -> str:
    """Return `NAME=value` of the variables that may change what kernels compute, of those set."""
    return " ".join(f"{name}={value}" for name, value in variables().items())


def variables() -> dict[str, str]:
    """Return the variables that may change what kernels compute, of those set."""
    found = {name: os.environ.get(name) for name in _VARIABLES}
    return {name: value for name, value in found.items() if value}


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution, empty where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@cache
def device_name(device: str) -> str:
    """Return the name of a device, empty where it cannot be told."""
    if device.split(":", maxsplit=1)[0] == "cuda":
        from torch import cuda  # noqa: PLC0415  # only a process that runs kernels needs torch

        return str(cuda.get_device_name(device))
    return _processor_name()


@cache
def arch_key(device: str) -> str:
    """Return the key of the architecture, the same on machines that run the same code paths."""
    if device.split(":", maxsplit=1)[0] == "cuda":
        from torch import cuda  # noqa: PLC0415  # as in device_name

        major, minor = cuda.get_device_capability(device)
        return f"cuda-sm{major}{minor}"
    from torch.backends import cpu  # noqa: PLC0415  # as in device_name

    capability = str(cpu.get_cpu_capability()).lower().replace(" ", "")
    return f"{device.split(':', maxsplit=1)[0]}-{platform.machine()}-{capability}"


@cache
def commit_of(folder: Path) -> str:
    """Return the commit checked out around `folder`, `+` where files differ; empty without one."""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    changed = commit and _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+" if changed else commit


def source_digest() -> str:
    """Return the first 16 hexadecimal digits of `source_sha256`."""
    return source_sha256()[:16]


@cache
def source_sha256() -> str:
    """Return the digest of biprop's own sources, whatever version they call themselves.

    SHA-256, in hexadecimal, of one line a file of `src/biprop`, `kernels` and `strategies`, sorted
    by path: the path inside the package, NUL, the file's own digest. Code, JSON and templates
    count, texts and tests do not. Git is not asked: a copy of the tree has the digest of the tree.
    """
    root = Path(__file__).resolve().parent
    total = hashlib.sha256()
    # Follows the links kernels and strategies, as an installed wheel holds their files too.
    folders = [root, *(root / name for name in ("kernels", "strategies"))]
    files = {
        path.relative_to(root).as_posix(): path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in _SOURCE_SUFFIXES and path.is_file()
    }
    for name in sorted(files):
        total.update(f"{name}\0{file_digest(files[name])}\n".encode())
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256, empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def _git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", str(folder), *arguments)
    try:
        # S603: the command is fixed; only the folder varies, and it follows -C.
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
