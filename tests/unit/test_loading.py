"""Targets are found or refused with a sentence, descriptions checked where they are written."""

import fnmatch
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.wrong_inputs import (
    WRONG_CALLS,
    WRONG_DIMS,
    WRONG_INPUTS,
    WRONG_SIGNATURES,
    WRONG_TARGETS,
    WrongInput,
)

from biprop.errors import BipropError, SignatureError, TargetError, UsageError
from biprop.loading import (
    OperatorSpec,
    check_call,
    load_target,
    operator,
    operator_spec,
    source_constants,
    source_thresholds,
)
from biprop.signature import parse_call, parse_target

READABLE = WRONG_SIGNATURES + WRONG_DIMS + WRONG_CALLS + WRONG_TARGETS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty folder, and forget afterwards what was imported from it."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


def read(argv: tuple[str, ...]) -> None:
    """Read a command line in the order in which the command does."""
    target, options = argv[0], dict(zip(argv[1::2], argv[2::2], strict=True))
    parse_target(target)
    spec = operator_spec(
        options["--signature"],
        dims=options.get("--dims", ""),
        call=parse_call(options.get("--call", "")),
    )
    check_call(load_target(target), spec, name=parse_target(target).name)


def by_name(wrong: WrongInput) -> str:
    """Return the id of a parametrised case."""
    return wrong.name


class TestWrongInputs:
    """The table that the command line is tested with, too."""

    @pytest.mark.parametrize("wrong", READABLE, ids=by_name)
    def test_each_gets_one_sentence_that_says_what_is_wrong(
        self, wrong: WrongInput, folder: Path
    ) -> None:
        """Every wrong signature, target, dimension and call is one sentence about itself."""
        wrong.write_files(folder)

        with pytest.raises(BipropError, match=re.escape(wrong.fragment)) as caught:
            read(wrong.argv)

        sentence = str(caught.value)
        assert sentence.isascii()
        assert sentence.isprintable()
        assert sentence.endswith(".")
        assert len(sentence) < 500
        assert not re.search(r"[.?!] [A-Z]", sentence)
        assert re.search(r"[:,] ", sentence)

    def test_names_are_unique(self) -> None:
        """No two entries share a name, so that a failing one is found."""
        names = [wrong.name for wrong in WRONG_INPUTS]

        assert len(set(names)) == len(names) >= 40


class TestLoadTarget:
    """Modules and files alike."""

    def test_a_function_of_a_module_is_found(self) -> None:
        """A dotted module is imported."""

        assert load_target("fnmatch:fnmatch") is fnmatch.fnmatch
        assert load_target("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}

    def test_a_function_of_a_file_is_found_with_its_siblings(self, folder: Path) -> None:
        """Siblings are imported at the top of the file and when its functions run."""
        (folder / "sub").mkdir()
        (folder / "sub/biprop_test_early.py").write_text("ONE = 1\n")
        (folder / "sub/biprop_test_late.py").write_text("TWO = 2\n")
        (folder / "sub/kernels.py").write_text(
            "from biprop_test_early import ONE\n"
            "def both():\n    from biprop_test_late import TWO\n    return ONE, TWO\n"
        )

        assert load_target("sub/kernels.py:both")() == (1, 2)

    def test_a_sibling_does_not_stand_in_for_the_library(self, folder: Path) -> None:
        """After the import, a sibling named like a module of Python comes last."""
        (folder / "colorsys.py").write_text("raise RuntimeError('the sibling was imported')\n")
        (folder / "kernels.py").write_text(
            "def name():\n    import colorsys\n    return colorsys\n"
        )
        sys.modules.pop("colorsys", None)

        found = load_target("kernels.py:name")()

        assert hasattr(found, "rgb_to_hsv")
        assert sys.path[-1] == str(folder)

    def test_a_file_is_one_module_however_it_is_written(self, folder: Path) -> None:
        """The same file is loaded once, and another of the same name is another module."""
        for name in ("one", "two"):
            (folder / name).mkdir()
            (folder / name / "kernels.py").write_text(f"def which():\n    return '{name}'\n")

        first, again = load_target("one/kernels.py:which"), load_target("./one/kernels.py:which")

        assert first is again
        assert load_target("two/kernels.py:which")() == "two"
        assert first() == "one"

    def test_a_function_of_a_file_can_be_pickled_and_shown(self, folder: Path) -> None:
        """The module is registered, so that pickle and inspect find the function again."""
        source = "def one():\n    return 1\n"
        (folder / "kernels.py").write_text(source)

        function = load_target("kernels.py:one")

        assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301 - our own
        assert inspect.getsource(function) == source

    def test_a_member_of_a_class_is_found(self, folder: Path) -> None:
        """The name may be dotted."""
        (folder / "kernels.py").write_text(
            "class Norm:\n    @staticmethod\n    def forward(x):\n        return x\n"
        )

        assert load_target("kernels.py:Norm.forward")(3) == 3

    def test_a_failed_import_leaves_nothing_behind(self, folder: Path) -> None:
        """A file that is corrected can be loaded."""
        path = folder / "kernels.py"
        path.write_text("1 / 0\n")
        with pytest.raises(TargetError, match="ZeroDivisionError"):
            load_target("kernels.py:one")

        path.write_text("def one():\n    return 1\n# longer, as caches go by time and size\n")

        assert load_target("kernels.py:one")() == 1

    def test_a_foreign_message_stays_one_printable_line(self, folder: Path) -> None:
        """Control codes and lines of an exception do not reach the terminal."""
        (folder / "kernels.py").write_text("raise ValueError('a\\x1b[31m\\n' + 'b' * 999)\n")

        with pytest.raises(TargetError, match=r"ValueError: a\[31m b{190,}\.\.\., so") as caught:
            load_target("kernels.py:one")

        assert str(caught.value).isprintable()

    def test_a_path_too_long_for_the_system_names_no_file(self) -> None:
        """The error of the file system is not shown."""

        with pytest.raises(TargetError, match="names no file"):
            load_target(f"{'x' * 3000}.py:one")

    def test_a_triton_kernel_is_no_target(self, folder: Path) -> None:
        """What is launched over a grid takes no tensors to return others."""
        pytest.importorskip("triton")
        (folder / "kernels.py").write_text(
            "import triton\n@triton.jit\ndef kernel(x, n):\n    pass\n"
        )

        with pytest.raises(TargetError, match="is a Triton kernel"):
            load_target("kernels.py:kernel")

    def test_no_torch_is_imported(self) -> None:
        """Loading and describing need no torch of their own."""
        code = "import biprop.loading, sys; sys.exit('torch' in sys.modules)"

        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestOperator:
    """The decorator and its record."""

    def test_the_function_itself_is_returned_with_its_record(self) -> None:
        """Nothing is wrapped, so that tracebacks and sources stay the author's."""

        def norm(x: object, weight: object, *, eps: float) -> object:
            return x, weight, eps

        described = operator(
            "x[T,H], weight[H] -> y[T,H/2]",
            dims="H=2..64",
            align=16,
            call={"eps": 1e-6},
            token_local=True,
        )(norm)

        spec = described.__biprop__  # type: ignore[attr-defined]  # what the decorator leaves
        assert described is norm
        assert isinstance(spec, OperatorSpec)
        assert spec.signature.text == "x[T,H], weight[H] -> y[T,H/2]; token_local"
        assert spec.restrictions.text == "H=2..64 H%2==0"
        assert (spec.align, spec.call) == (16, {"eps": 1e-6})

    def test_a_backward_is_read_against_its_forward(self) -> None:
        """Both signatures are kept, with the callable."""

        def backward(dy: object, weight: object) -> object:
            return dy, weight

        spec = operator_spec(
            "x[T,H], weight[H] -> y[T,H]", backward=(backward, "dy[T,H], weight[H] -> dx[T,H]")
        )

        assert spec.backward is backward
        assert spec.backward_signature is not None
        assert spec.backward_signature.text == "dy[T,H], weight[H] -> dx[T,H]"

    def test_a_function_of_other_arguments_is_refused(self) -> None:
        """The mistake is found where the function is written."""
        with pytest.raises(SignatureError, match=r"'norm' cannot be called as \(x, weight\)"):

            @operator("x[T,H], weight[H] -> y[T,H]")
            def norm(x: object) -> object:
                return x

    def test_a_backward_of_other_arguments_is_refused(self) -> None:
        """The backward's own parameters are asked as well."""
        with pytest.raises(SignatureError, match=r"cannot be called as \(dy\)"):

            @operator("x[T,H] -> y[T,H]", backward=(lambda: None, "dy[T,H] -> dx[T,H]"))
            def norm(x: object) -> object:
                return x

    def test_a_builtin_cannot_be_marked(self) -> None:
        """What has no attributes gets a sentence."""

        with pytest.raises(TargetError, match=r"wrap it in a function of your own"):
            operator("x[T] -> y[T]")(len)

    @pytest.mark.parametrize("align", [0, 3, -16, 8192, 1.5])
    def test_an_alignment_is_a_power_of_two(self, align: int) -> None:
        """No address has another."""

        with pytest.raises(UsageError, match="power of two"):
            operator_spec("x[T] -> y[T]", align=align)

    @pytest.mark.parametrize("value", ["max", [1], float("inf"), float("nan"), 2**63])
    def test_a_fixed_value_is_a_plain_finite_number(self, value: float) -> None:
        """What a fixture could not carry is refused at once."""

        with pytest.raises(UsageError, match="mode="):
            operator_spec("x[T] -> y[T]", call={"mode": value})

    def test_a_backward_is_a_pair(self) -> None:
        """A callable alone has no signature."""

        with pytest.raises(UsageError, match="no pair"):
            operator_spec("x[T] -> y[T]", backward=len)  # type: ignore[arg-type]  # the mistake


class TestSourceConstants:
    """Sizes at which a kernel may change its mind."""

    def test_literals_and_their_products_are_found(self, folder: Path) -> None:
        """Literals of the whole file count, folded ones too, within 2 to 65,536."""
        (folder / "kernels.py").write_text(
            "LIMIT = 3 * 1024\nflag, small, large = True, 1, 70000\n"
            "def tile(n):\n    return 96 if n > (1 << 12) else 2**5\n"
            "TEXT = '777'\n"
        )

        constants = source_constants(load_target("kernels.py:tile"))

        assert constants == (2, 3, 5, 12, 32, 96, 1024, 3072, 4096)

    def test_computed_configurations_and_constants_are_found(self, folder: Path) -> None:
        """Values that no literal shows are taken from Triton's own objects and from the module."""
        pytest.importorskip("triton")
        (folder / "kernels.py").write_text(
            "import triton\nimport triton.language as tl\n"
            "size = int('300')\n"
            "block = tl.constexpr(int('48'))\n"
            "@triton.autotune([triton.Config({'M': int('80')}, num_warps=int('8'))], key=['n'])\n"
            "@triton.jit\ndef kernel(x, n, M: tl.constexpr):\n    pass\n"
            "def launch(x):\n    return x\n"
        )

        assert {48, 80, 8, 300} <= set(source_constants(load_target("kernels.py:launch")))

    def test_a_wrapper_is_looked_through(self, folder: Path) -> None:
        """The source is that of the function within."""
        (folder / "kernels.py").write_text(
            "import functools\n"
            "def inner(x, n):\n    return 1234\n"
            "outer = functools.partial(functools.wraps(inner)(lambda x, n: x), n=1)\n"
        )

        assert 1234 in source_constants(load_target("kernels.py:outer"))

    def test_a_builtin_has_none(self) -> None:
        """No source, no constants."""

        assert source_constants(len) == ()
        assert source_constants(load_target("math:sqrt")) == ()

    def test_a_power_that_fills_the_memory_is_not_computed(self, folder: Path) -> None:
        """Folding is bounded."""
        (folder / "kernels.py").write_text(
            "def f():\n    return 9**9**9**9, 65536 << 65536, 1 // 0\n"
        )

        assert source_constants(load_target("kernels.py:f")) == (9, 65536)


class TestSourceThresholds:
    """Sizes that a function itself asks about."""

    def test_a_remainder_stands_for_the_sizes_that_leave_it(self, folder: Path) -> None:
        """The first few, computed from names too; what the module mentions beside it is left."""
        (folder / "kernels.py").write_text(
            "_TILE, OTHER = 32, 777\n"
            "def f(n):\n    return n > _TILE and n % (2 * _TILE) == _TILE + 1\n"
            "def other(n):\n    return n > 555\n"
        )

        found = source_thresholds(load_target("kernels.py:f"))

        assert {32, 33, 64, 97, 161} <= set(found)
        assert not {555, 777} & set(found)

    def test_functions_that_it_calls_are_read(self, folder: Path) -> None:
        """And small tables, and what is nested; but no function of another package."""
        (folder / "kernels.py").write_text(
            "import textwrap\n"
            "TABLE = frozenset({17, 130})\n"
            "LONG = tuple(range(1000, 1100))\n"
            "def is_tuned(n):\n    return n in TABLE or n in LONG\n"
            "def f(n):\n    def inner(m):\n        return m < 48\n"
            "    return is_tuned(n) and inner(n) and textwrap.dedent\n"
        )

        assert source_thresholds(load_target("kernels.py:f")) == (17, 48, 130)

    def test_functions_that_call_each_other_end(self, folder: Path) -> None:
        """Each is read once."""
        (folder / "kernels.py").write_text(
            "def f(n):\n    return g(n) if n > 21 else n\n"
            "def g(n):\n    return f(n) if n > 84 else n\n"
        )

        assert source_thresholds(load_target("kernels.py:f")) == (21, 84)

    def test_a_builtin_has_none(self) -> None:
        """No source, no thresholds."""
        assert source_thresholds(len) == ()
        assert source_thresholds(load_target("math:sqrt")) == ()
