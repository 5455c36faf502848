"""The rules of the house that no linter knows.

ruff, mypy, import-linter and pymarkdown keep the others (`ci/check`).
"""

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
PLANTED_COUNT_MIN = 15
TEXT_SUFFIXES = {
    "",
    ".cfg",
    ".html",
    ".j2",
    ".json",
    ".jsonl",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".txt",
    ".yml",
}
# What git ignores, and what no change writes.
FOLDERS_IGNORED = {"__pycache__", ".git", ".hypothesis", ".venv", "build", "dist"}
# Values are compared as bits, and only in biprop.bits.
COMPARISONS_BANNED = {"allclose", "assert_allclose", "assert_close", "equal", "isclose"}
# Their sums have no order of their own, so no kernel may be built on them.
UNORDERED_SUMS = {
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
}
MACHINE_PATHS = re.compile(
    r"(?<![\w.~$}/-])/(?:Users|data|farm|home|mnt|opt|root|scratch|srv|tmp|work|workspace)/\w"
)
REGISTRY_HOSTS = re.compile(
    r"pypi\.org|pythonhosted\.|download\.pytorch\.|npmjs\.|conda\.anaconda\."
)
TODO = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
# Every threshold stands in contract.json, with its origin beside it.
THRESHOLD_NAMES = re.compile(r"(?:^|_)(?:[ar]?tol|tolerances?|thresholds?)(?:_|$)", re.IGNORECASE)
DECISION = re.compile(r"(\d{4})-[a-z0-9]+(?:-[a-z0-9]+)*\.md")


def text_files() -> list[Path]:
    """List the text files of the tree, each once: links are not followed."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in FOLDERS_IGNORED and not name.endswith((".egg-info", "_cache"))
        ]
        found += [Path(folder, name) for name in names if Path(name).suffix in TEXT_SUFFIXES]
    return sorted(path for path in found if not path.is_symlink() and path.name != ".coverage")


def offenders(paths: Iterable[Path], find: Callable[[Path], object]) -> dict[str, object]:
    """Map each file in which `find` finds something to what it found."""
    found = {path.relative_to(ROOT).as_posix(): find(path) for path in paths}
    return {name: what for name, what in found.items() if what}


def product(path: Path) -> bool:
    """Tell whether a file is shipped."""
    return path.relative_to(ROOT).parts[0] in {"kernels", "src", "strategies"}


TEXTS = text_files()
MODULES = [path for path in TEXTS if path.suffix == ".py"]
SHIPPED = [path for path in MODULES if product(path)]
KERNELS = [
    path
    for path in MODULES
    if path.is_relative_to(ROOT / "kernels")
    and "planted" not in path.parts
    and path.name != "__init__.py"
]


@cache
def tree(path: Path) -> ast.Module:
    """Parse a module once."""
    return ast.parse(path.read_text(), filename=str(path))


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> Iterator[None]:
    """Keep the trees no longer than here: so many objects slow each collection of garbage."""
    gc.disable()
    yield
    tree.cache_clear()
    gc.enable()


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a module that is not compiled by Triton."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
            if not decorators & {"jit", "triton.jit"}:
                yield node


def attributes(path: Path) -> set[str]:
    """Name every attribute that a module reads or calls."""
    return {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}


def assigned(path: Path) -> set[str]:
    """Name what a module assigns at its top level."""
    names: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def named_values(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield every name that a module gives a value by a word of its own, with the value."""
    for node in ast.walk(module):
        match node:
            case ast.keyword(arg=str(name), value=value):
                yield name, value
            case ast.Assign(targets=targets, value=value):
                yield from ((name, value) for target in targets for name in target_names(target))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from ((name, value) for name in target_names(target))
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value
            case ast.arguments(posonlyargs=first, args=args, kwonlyargs=others):
                positional = [*first, *args]
                last = positional[len(positional) - len(node.defaults) :]
                words = zip(others, node.kw_defaults, strict=True)
                for argument, default in (*zip(last, node.defaults, strict=True), *words):
                    if default is not None:
                        yield argument.arg, default


def target_names(target: ast.expr) -> set[str]:
    """Name what an assignment writes to: variables, attributes and string keys."""
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(target) if isinstance(node, ast.Attribute)}
    return names | {
        node.value
        for node in ast.walk(target)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def is_literal(value: ast.expr) -> bool:
    """Tell whether a value is a number written out, or holds one; zero only demands equality."""
    match value:
        case ast.Constant(value=int() | float() as number):
            return not isinstance(number, bool) and number != 0
        case ast.UnaryOp(operand=operand):
            return is_literal(operand)
        case ast.BinOp(left=left, right=right):
            return is_literal(left) or is_literal(right)
        case ast.IfExp(body=body, orelse=orelse):
            return is_literal(body) or is_literal(orelse)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return any(is_literal(part) for part in parts)
        case ast.Call(args=args, keywords=keywords):
            # A field of a record: attrs.field(default=...).
            return any(is_literal(part) for part in (*args, *(word.value for word in keywords)))
        case _:
            return False


def thresholds(module: ast.Module) -> list[str]:
    """List the numbers of a module that have the name of a threshold."""
    return [
        f"{value.lineno}: {name} = {ast.unparse(value)}"
        for name, value in named_values(module)
        if THRESHOLD_NAMES.search(name) and is_literal(value)
    ]


def module_name(path: Path) -> str:
    """Name the module that a file below kernels/ is imported as."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("biprop", *(part for part in parts if part != "__init__")))


def hits(pattern: re.Pattern[str], path: Path) -> list[str]:
    """List the lines of a file that a pattern finds, with their numbers."""
    lines = path.read_text(errors="replace").splitlines()
    return [
        f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if pattern.search(line)
    ]


def test_tree_was_found() -> None:
    """The lists that the tests below walk are not empty."""

    assert len(SHIPPED) > 10
    assert KERNELS
    assert ROOT / "pyproject.toml" in TEXTS


@pytest.mark.parametrize("name", ["kernels", "strategies"])
def test_link_leads_to_its_folder(name: str) -> None:
    """Both folders are linked into the package; a clone made without links ships no kernels."""
    link = ROOT / "src" / "biprop" / name

    assert link.is_symlink()
    assert link.readlink() == Path("../..", name)
    assert link.resolve() == ROOT / name


def test_modules_say_what_they_are_for() -> None:
    """Every module has a docstring."""

    assert offenders(MODULES, lambda path: ast.get_docstring(tree(path)) is None) == {}


def test_files_are_short() -> None:
    """No module has more than 600 lines."""

    def excess(path: Path) -> int:
        return max(0, len(path.read_text().splitlines()) - FILE_LINES_MAX)

    assert offenders(MODULES, excess) == {}


def test_functions_are_short() -> None:
    """No function has more than 60 lines, Triton kernels excepted."""

    def long(path: Path) -> dict[str, int]:
        lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(path)}
        return {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX}

    assert offenders(MODULES, long) == {}


def test_only_bits_are_compared() -> None:
    """No shipped module uses a comparison of values that hides bits, as function or method."""

    assert offenders(SHIPPED, lambda path: attributes(path) & COMPARISONS_BANNED) == {}


def test_only_the_contract_has_thresholds() -> None:
    """No shipped module holds a number that has the name of a threshold: they are in one file."""

    assert offenders(SHIPPED, lambda path: thresholds(tree(path))) == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("close(x, y, atol=1e-3)", ["1: atol = 0.001"]),
        ("_RTOL = 2**-7", ["1: _RTOL = 2 ** (-7)"]),
        ("class A:\n    max_tolerance: float = attrs.field(default=0.5)", ["2: max_tolerance = "]),
        ("def f(*, threshold=-3): ...", ["1: threshold = -3"]),
        ("def f(tol=0.1, /): ...", ["1: tol = 0.1"]),
        ("x = {'atol': 0.1 if half else bound}", ["1: atol = 0.1 if half else bound"]),
        ("x['rtol'] = 1.0", ["1: rtol = 1.0"]),
        ("self.tolerances = (0, 1e-5)", ["1: tolerances = (0, 1e-05)"]),
        ("low, atol = 0.0, 0.5", ["1: atol = (0.0, 0.5)"]),
        ("if (tol := 1e-4): ...", ["1: tol = 0.0001"]),
        ("close(x, y, atol=cell.atol, rtol=0.0)", []),
        ("tolerance = contract.tolerance(dtype=dtype)", []),
        ("total = 3.5; tolerant = True; stolen = 1.0", []),
    ],
)
def test_finder_of_thresholds_finds_them(code: str, found: list[str]) -> None:
    """A number is found as keyword, variable, attribute, key, default or field; zero is none."""
    hits_in_code = thresholds(ast.parse(code))

    assert len(hits_in_code) == len(found)
    assert all(hit.startswith(start) for hit, start in zip(hits_in_code, found, strict=True))


def test_no_machine_is_named() -> None:
    """No file names a folder of somebody's machine, or a host that packages come from."""

    assert offenders(TEXTS, lambda path: hits(MACHINE_PATHS, path)) == {}
    assert offenders(TEXTS, lambda path: hits(REGISTRY_HOSTS, path)) == {}


def test_every_todo_names_its_issue() -> None:
    """What is left to do stands in an issue, and the line in the file names it: `TODO(#12)`."""
    others = [path for path in TEXTS if path != Path(__file__)]

    assert offenders(others, lambda path: hits(TODO, path)) == {}


def test_decisions_are_numbered() -> None:
    """The decisions are numbered from 0001 without a gap, and each opens with its number."""
    pages = sorted(
        path for path in (ROOT / "ci" / "decisions").iterdir() if path.name != "README.md"
    )
    numbers = [match.group(1) for path in pages if (match := DECISION.fullmatch(path.name))]

    assert numbers == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for path, number in zip(pages, numbers, strict=True):
        assert path.read_text().startswith(f"# {number}: ")


def test_every_operator_is_listed() -> None:
    """A kernel file that defines an operator exports it, and `OPERATORS` lists them all."""
    listed = import_module("biprop.kernels").OPERATORS
    defining = [path for path in KERNELS if "OPERATOR" in assigned(path)]
    exported = [import_module(module_name(path)).OPERATOR for path in defining]

    assert sorted(operator.name for operator in listed) == sorted(
        operator.name for operator in exported
    )
    assert all(any(operator is other for other in listed) for operator in exported)


def test_kernels_sum_in_order() -> None:
    """No kernel outside planted/ uses atomics, or an operation that adds in no order."""

    def unordered(path: Path) -> set[str]:
        used = attributes(path)
        keywords = {node.arg for node in ast.walk(tree(path)) if isinstance(node, ast.keyword)}
        atomics = {name for name in used if name.startswith("atomic_")}
        return (used & UNORDERED_SUMS) | atomics | ({"accumulate"} & keywords)

    assert offenders(KERNELS, unordered) == {}


def test_every_planted_kernel_has_a_power_test() -> None:
    """Each planted kernel, by its name, is an item of tests/power."""
    planted_kernels = import_module("biprop.kernels.planted")
    names = [item.name for item in (*planted_kernels.PLANTED, *planted_kernels.CACHES)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        # A third of them otherwise.
        "--biprop-profile=nightly",
        str(ROOT / "tests" / "power"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    words = set(re.findall(r"[\w.]+", done.stdout))

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(names) == len(set(names)) >= PLANTED_COUNT_MIN
    assert [name for name in names if name not in words] == []
