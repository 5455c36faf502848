"""Everything wrong that a user may hand to `biprop check`, and what the answer must say.

Only data: `tests/unit/test_loading.py` reads each entry as the command does, and the tests of the
command line run each through it.
"""

from pathlib import Path

import attrs

__all__ = [
    "WRONG_CALLS",
    "WRONG_DIMS",
    "WRONG_INPUTS",
    "WRONG_OPTIONS",
    "WRONG_SIGNATURES",
    "WRONG_TARGETS",
    "WrongInput",
]

TARGET = "kernels.py:norm"
SOUND = "x[T,H], weight[H] -> y[T,H]"
FILES = {"kernels.py": "def norm(x, weight):\n    return x * weight\n"}


@attrs.frozen(kw_only=True)
class WrongInput:
    """One wrong command line.

    Attributes:
        name: What is wrong, as the id of a test.
        argv: Arguments of `biprop check`, beginning with the target.
        fragment: What the error must contain.
        files: Text of the files that must lie in the working directory, by path; a path that ends
            with `/` is a folder.
    """

    name: str
    argv: tuple[str, ...]
    fragment: str
    files: dict[str, str] = attrs.field(factory=lambda: dict(FILES))

    def write_files(self, folder: Path) -> None:
        """Write the files into a folder."""
        for name, text in self.files.items():
            if name.endswith("/"):
                (folder / name).mkdir(parents=True)
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)


def _signature(name: str, text: str, fragment: str) -> WrongInput:
    return WrongInput(name=name, argv=(TARGET, "--signature", text), fragment=fragment)


def _option(name: str, option: str, text: str, fragment: str) -> WrongInput:
    argv = (TARGET, "--signature", SOUND, option, text)
    return WrongInput(name=name, argv=argv, fragment=fragment)


def _target(name: str, text: str, fragment: str, **files: str) -> WrongInput:
    # Keywords cannot have dots: `wrong_py` is the file wrong.py.
    written = {f"{key.removesuffix('_py')}.py": source for key, source in files.items()}
    argv = (text, "--signature", SOUND)
    return WrongInput(name=name, argv=argv, fragment=fragment, files=FILES | written)


MANY = ", ".join(f"x{index}[T]" for index in range(65))

WRONG_SIGNATURES = (
    _signature("empty", "  ", "The signature is empty"),
    _signature("too-long", "x[T] -> y[T]" + " " * 4000, "has 4012 characters"),
    _signature("unicode-arrow", "x[T,H] \u2192 y[T,H]", "U+2192 at index 7: write -> instead"),
    _signature("unicode-name", "\u0445[T,H] -> y[T,H]", "U+0445 at index 0"),
    _signature("control-character", "x[T,H] -> y[T,H]\x1b", "U+001B"),
    _signature("no-arrow", "x[T,H], y[T,H]", "has no '->'"),
    _signature("two-arrows", "x[T,H] -> y[T,H] -> z[T,H]", "has '->' 2 times"),
    _signature("no-argument", " -> y[T,H]", "has no argument"),
    _signature("too-many-arguments", f"{MANY} -> y[T]", "has 65 arguments: write at most 64"),
    _signature("trailing-comma", "x[T,H], -> y[T,H]", "Argument 2 is empty: drop the trailing"),
    _signature("leading-comma", ", x[T,H] -> y[T,H]", "Argument 1 is empty"),
    _signature("double-comma", "x[T,H] -> y[T,H],, z[T]", "Output 2 is empty"),
    _signature("no-comma", "x[T,H] w[H] -> y[T,H]", "'x[T,H] w[H]' cannot be read"),
    _signature("bracket-open", "x[T,H -> y[T,H]", "has '[' that nothing closes"),
    _signature("bracket-closed", "xT,H], w[H] -> y[T]", "has ']' that nothing opens"),
    _signature("bracket-nested", "x[T,[H]] -> y[T]", "has '[' inside '['"),
    _signature("bracket-mixed", "x[T,H) -> y[T,H]", "has ')' that nothing opens"),
    _signature("round-brackets", "x(T,H) -> y[T,H]", "write it as name[dims]"),
    _signature("no-brackets", "x[T,H], weight -> y[T,H]", "'weight' has no dimensions"),
    _signature("empty-dims", "x[] -> y[T,H]", "'x' has no dimensions"),
    _signature("empty-dim", "x[T,,H] -> y[T,H]", "'x' has an empty dimension"),
    _signature("trailing-dim-comma", "x[T,H,] -> y[T,H]", "'x' has an empty dimension"),
    _signature("too-many-dims", "x[T,1,1,1,1,1,1,1,1] -> y[T]", "'x' has 9 dimensions"),
    _signature("no-name", "[T,H] -> y[T,H]", "'[T,H]' has no name"),
    _signature("digit-name", "2x[T,H] -> y[T,H]", "'2x' begins with a digit"),
    _signature("keyword-name", "lambda[T,H] -> y[T,H]", "'lambda' is a Python keyword"),
    _signature("dotted-name", "self.x[T,H] -> y[T,H]", "'self.x' is no identifier"),
    _signature("long-name", f"{'x' * 65}[T,H] -> y[T,H]", "is longer than 64 characters"),
    _signature("ignored-argument", "_[T,H] -> y[T,H]", "Argument '_' has no name"),
    _signature("name-twice", "x[T,H], x[H] -> y[T,H]", "Argument 'x' has a name that is already"),
    _signature("output-named-as-input", "x[T,H] -> x[T,H]", "Output 'x' has a name that is"),
    _signature("colon-alone", "x: [T,H] -> y[T,H]", "'x' has a ':' without a kind"),
    _signature("unknown-kind", "x: flaot32[T,H] -> y[T,H]", "write 'float32'"),
    _signature("alias-kind", "x: bf16[T,H] -> y[T,H]", "write 'bfloat16'"),
    _signature("far-kind", "x: zzz[T,H] -> y[T,H]", "write one of float, "),
    _signature("dim-keyword", "x[T,def] -> y[T]", "'def', which is a Python keyword"),
    _signature("dim-digit", "x[T,2H] -> y[T]", "'2H', which begins with a digit"),
    _signature("dim-zero", "x[T,0] -> y[T]", "'0': write an integer from 1 to"),
    _signature("dim-huge", f"x[T,{'9' * 30}] -> y[T]", "write an integer from 1 to"),
    _signature("dim-too-large", "x[T,16777217] -> y[T]", "write an integer from 1 to 16777216"),
    _signature("dim-negative", "x[T,-1] -> y[T]", "'-1': write a name, an integer"),
    _signature("dim-reversed", "x[T,2*H] -> y[T,H]", "'2*H': write a name, an integer"),
    _signature("dim-subtracted", "x[T,H-1] -> y[T,H]", "'H-1': write a name"),
    _signature("dim-floor-divided", "x[T,H//2] -> y[T,H]", "'H//2': write a name"),
    _signature("dim-divided-by-zero", "x[T,H/0] -> y[T,H]", "'H/0': write an integer from 1"),
    _signature("dim-ellipsis", "x[T,...] -> y[T]", "'...', which is no identifier"),
    _signature("axis-scaled", "x[T*2,H] -> y[T,H]", "T is a token axis"),
    _signature("rows-plus-one", "x[B+1,S,H] -> y[B,S,H]", "B+1, which only offsets have"),
    _signature("axis-twice", "x[T,T] -> y[T]", "'x' has the token axis T twice"),
    _signature("no-token-axis", "x[M,K], w[N,K] -> y[M,N]", "No argument has a token axis"),
    _signature("rows-alone", "x[B,H] -> y[B,H]", "'x' has B and no tensor has slots"),
    _signature("two-layouts", "x[T,H], z[B,S,H] -> y[T,H]", "'x' has T and 'z' has S"),
    _signature("layouts-in-out", "x[B,Q,H] -> y[TQ,H]", "'x' has Q and 'y' has TQ"),
    _signature("slots-without-rows", "x[S,H] -> y[S,H]", "'x' has S without B"),
    _signature("queries-without-rows", "q[Q,D], k[B,C,D] -> y[B,Q,D]", "'q' has Q without B"),
    _signature("packed-rows", "x[T,B], n: lengths[B] -> y[T]", "'x' has both T and B"),
    _signature("two-axes", "w[B,Q,C] -> y[B,Q]", "'w' has the two token axes Q and C"),
    _signature("rows-unknown", "x[T,H], bias[B,H] -> y[T,H]", "'bias' has one value a sequence"),
    _signature("ends-unknown", "q[TQ,D], k[TC,D] -> y[TQ,D]", "'q' has packed queries"),
    _signature("kind-as-name", "x[B,S], mask[B,S] -> y[B,S]", "write mask: mask[B,S], or mask: fl"),
    _signature("kind-as-name-ids", "x[T,V], token[T] -> y[T]", "write token: token(V)[T], or"),
    _signature("kind-as-name-flag", "x[T], is_causal -> y[T]", "write is_causal: is_causal."),
    _signature("kind-as-name-rows", "x[T], offsets[B+1] -> y[T]", "write offsets: offsets[B+1]."),
    _signature("kind-as-name-size", "x[T], max_length[T] -> y[T]", "write max_length: max_length,"),
    _signature("kind-alone", "q[TQ], k[TC], lengths(Q)[B] -> y[TQ]", "as in x: lengths(Q)[B]"),
    _signature("token-rangeless", "t: token[T], w[V,H] -> y[T,H]", "'t' has kind token without"),
    _signature("token-empty-range", "t: token()[T], w[V] -> y[T]", "'' in parentheses"),
    _signature("token-number", "t: token(50257)[T], w[V] -> y[T]", "'50257' in parentheses"),
    _signature("token-of-tokens", "t: token(T)[T], w[V] -> y[T]", "range T, which is a token"),
    _signature("token-shared", "x[T,H], t: token(V)[N] -> y[T,H]", "'t' has kind token and no"),
    _signature("range-of-float", "x: float32(V)[T,H] -> y[T]", "float32 takes nothing in"),
    _signature("position-shape", "x[T,H], p: position[H] -> y[T,H]", "'p' has kind position"),
    _signature("position-shared", "x[T,H], p: position[1] -> y[T]", "'p' has kind position"),
    _signature("mask-shape", "x[B,S,H], m: mask[B,S,H] -> y[B,S,H]", "'m' has kind mask"),
    _signature("order-shape", "x[T,H], o: order[T,1] -> y[T,H]", "'o' has kind order"),
    _signature("lengths-shape", "x[B,S], n: lengths[S] -> y[B,S]", "write n: lengths[B]"),
    _signature("lengths-of-absent", "x[B,S], n: lengths(Q)[B] -> y[B,S]", "Q is no token axis"),
    _signature(
        "lengths-ambiguous",
        "q[B,Q,D], k[B,C,D], n: lengths[B] -> y[B,Q,D]",
        "write lengths(Q) or lengths(C)",
    ),
    _signature("offsets-shape", "x[T], o: offsets[B] -> y[T]", "write o: offsets[B+1]"),
    _signature("offsets-plus-two", "x[T], o: offsets[B+2] -> y[T]", "write o: offsets[B+1]"),
    _signature("causal-shape", "q[B,Q,D], m: causal_mask[B,Q] -> y[B,Q,D]", "last two be Q,C"),
    _signature(
        "causal-dtype",
        "q[B,Q,D], k[B,C,D], m: causal_mask(int32)[Q,C] -> y[B,Q,D]",
        "causal_mask(float) for an additive",
    ),
    _signature("causal-flag", "x[T,H], c: is_causal -> y[T,H]", "'c' has kind is_causal"),
    _signature("scalar-dims", "x[T,H], eps: scalar[1] -> y[T,H]", "'eps' has kind scalar and"),
    _signature("max-length-dims", "x[T], n: max_length[B] -> y[T]", "'n' has kind max_length"),
    _signature("mark-twice", "x!![T,H] -> y[T,H]", "'x' has more than one mark"),
    _signature("mark-late", "x[T,H]! -> y[T,H]", "put the mark '!' directly after the name"),
    _signature("mark-after-kind", "x: float32![T,H] -> ", "put '!' after the name"),
    _signature(
        "offsets-of-queries",
        "q[TQ,D], k[TC,D], o: offsets(Q)[B] -> y[TQ,D]",
        "write o: offsets(Q)[B+1]",
    ),
    _signature("mark-on-mask-kind", "x[T], m: mask![T] -> y[T]", "drop the '!', only a tensor"),
    _signature("mark-on-mask", "x[T,H], m!: mask[T] -> y[T,H]", "'m' has a mark and kind mask"),
    _signature("mark-on-parameter", "x[T,H], w![H] -> y[T,H]", "'w' has a mark and no token"),
    _signature("mark-on-output", "x[T,H] -> y![T,H]", "Output 'y' has a mark"),
    _signature("mark-on-ignored", "x[T,H] -> _!, y[T]", "Output '_' has a mark"),
    _signature("output-kind", "x[T,H] -> y: mask[T]", "Output 'y' has kind mask"),
    _signature("output-range", "x[T,H] -> y: int64(V)[T]", "Output 'y' has (V) after its kind"),
    _signature("output-dim", "x[T,H] -> y[T,N]", "'y' has the dimension N, which no argument"),
    _signature("output-shared", "x[T,H] -> y[H]", "Output 'y' has no token axis"),
    _signature("output-axes", "q[B,Q,D], k[B,C,D] -> y[B,Q,C]", "Output 'y' has the two token"),
    _signature("no-output", "x[T,H] ->", "has nothing to compare"),
    _signature("all-ignored", "x[T,H] -> _, _", "has nothing to compare"),
    _signature("no-float-output", "x[T,H] -> y: int64[T]", "has only 'y' to compare"),
    _signature("option-unknown", "x[T,H] -> y[T,H]; causal", "unknown option 'causal'"),
    _signature("option-empty", "x[T,H] -> y[T,H];", "has a ';' without an option"),
    _signature("option-twice", "x[T] -> y[T]; token_local; token_local", "twice: write it once"),
    _signature(
        "option-on-queries",
        "q[B,Q,D], k[B,C,D] -> y[B,Q,D]; token_local",
        "'token_local' needs tokens along T or B,S",
    ),
    WrongInput(
        name="more-arguments-than-parameters",
        argv=(TARGET, "--signature", "x[T,H], weight[H], bias[H] -> y[T,H]"),
        fragment="norm' cannot be called as (x, weight, bias)",
    ),
    WrongInput(
        name="fewer-arguments-than-parameters",
        argv=(TARGET, "--signature", "x[T,H] -> y[T,H]"),
        fragment="missing a required argument: 'weight'",
    ),
)

WRONG_DIMS = (
    _option("dims-form", "--dims", "H", "'H' cannot be read"),
    _option("dims-comparison", "--dims", "H<=8", "'H<=8' cannot be read"),
    _option("dims-open-range", "--dims", "H=8..", "'H=8..' cannot be read"),
    _option("dims-empty-range", "--dims", "H=9..8", "write H=8..9"),
    _option("dims-zero", "--dims", "H=0..8", "write an integer from 1 to"),
    _option("dims-huge", "--dims", f"H={'9' * 40}", "write an integer from 1 to"),
    _option("dims-twice", "--dims", "H=8 H=16", "restricts H a second time"),
    _option("dims-keyword", "--dims", "if=8", "is a Python keyword"),
    _option("dims-unknown", "--dims", "K=8", "the signature has H"),
    _option("dims-token-axis", "--dims", "T=8", "T, which is a token axis"),
    _option("dims-modulo-zero", "--dims", "H%0==0", "write an integer from 1"),
    _option("dims-modulo-itself", "--dims", "H%H==0", "divides H by itself"),
    _option("dims-remainder", "--dims", "H%8==8", "write a remainder below 8"),
    _option("dims-unsatisfiable", "--dims", "H=1..7 H%8==0", "leaves no size for H"),
    _option("dims-contradicting", "--dims", "H%4==0 H%6==1", "leaves no size for H"),
    _option("dims-unicode", "--dims", "H\u2264 8", "U+2264"),
    WrongInput(
        name="dims-against-division",
        argv=(TARGET, "--signature", "x[T,H], w[H] -> y[T,H/2]", "--dims", "H=17"),
        fragment="because of 'H%2==0'",
    ),
    WrongInput(
        name="dims-pair",
        argv=(TARGET, "--signature", "x[T,A], w[D] -> y[T,A]", "--dims", "A=5|7 D=2 A%D==0"),
        fragment="leaves no sizes for A and D",
    ),
)

WRONG_CALLS = (
    _option("call-no-value", "--call", "eps", "'eps' has no '='"),
    _option("call-empty-value", "--call", "eps=", "eps=''"),
    _option("call-text", "--call", "mode='max'", "write a finite number"),
    _option("call-list", "--call", "shape=[1", "write a finite number"),
    _option("call-expression", "--call", "eps=2**9", "write a finite number"),
    _option("call-code", "--call", "eps=__import__('os').getpid()", "write a finite number"),
    _option("call-infinite", "--call", "eps=1e999", "write a finite number"),
    _option("call-nan", "--call", "eps=nan", "write a finite number"),
    _option("call-too-large", "--call", "n=9223372036854775808", "write a finite number"),
    _option("call-lower-case", "--call", "flag=true", "write True"),
    _option("call-twice", "--call", "a=1, a=2", "'a' twice"),
    _option("call-name", "--call", "2a=1", "begins with a digit"),
    _option("call-comma", "--call", "a=1,", "extra comma"),
    _option("call-in-signature", "--call", "weight=1", "which the signature draws"),
    _option("call-unknown", "--call", "epsilon=1", "got an unexpected keyword argument"),
)

WRONG_TARGETS = (
    _target("target-empty", "", "The target is empty"),
    _target("target-no-colon", "math.sqrt", "'math.sqrt' has no ':'"),
    _target("target-file-no-colon", "kernels.py", "write kernels.py:name"),
    _target("target-no-place", ":norm", "has nothing before its ':'"),
    _target("target-no-name", "kernels.py:", "has nothing after its ':'"),
    _target("target-name", "kernels.py:a b", "'a b' is no identifier"),
    _target("target-local", "kernels.py:f.<locals>.g", "'<locals>' is no identifier"),
    _target("target-module-name", "my-kernels:norm", "'my-kernels' is no identifier"),
    _target("target-relative", ".kernels:norm", "'' is empty"),
    _target("target-control", "kernels.py:\x1bnorm", "has a control character"),
    _target("target-suffix", "src/kernels.pyx:norm", "which is not a .py file"),
    _target("target-module-missing", "no_such_module:norm", "no module 'no_such_module'"),
    _target("target-submodule-missing", "json.no_such:norm", "no module 'json.no_such'"),
    _target(
        "target-module-is-file", "wrong:norm", "write wrong.py:norm", wrong_py="def norm(x): ...\n"
    ),
    _target("target-name-missing", "math:sqrrt", "has no name 'sqrrt': write 'sqrt'"),
    _target("target-member-missing", "json:JSONEncoder.encod", "write 'encode'"),
    _target("target-file-missing", "missing.py:norm", "names no file"),
    _target("target-not-callable", "sys:maxsize", "is of type int, which cannot be called"),
    _target("target-module", "json:decoder", "is of type module, which cannot be called"),
    _target("target-class", "json:JSONEncoder", "is the class JSONEncoder"),
    _target(
        "target-raises",
        "wrong.py:norm",
        "it raises ZeroDivisionError: division by zero, so",
        wrong_py="1 / 0\n",
    ),
    _target(
        "target-exits", "wrong.py:norm", "it raises SystemExit: 3", wrong_py="raise SystemExit(3)\n"
    ),
    _target("target-syntax", "wrong.py:norm", "it raises SyntaxError:", wrong_py="def\n"),
    _target(
        "target-imports-missing",
        "wrong.py:norm",
        "it raises ModuleNotFoundError: No module named 'no_such_module'",
        wrong_py="import no_such_module\n",
    ),
    _target(
        "target-decorated-wrongly",
        "wrong.py:norm",
        "it raises SignatureError: Argument 'x' has the unknown kind",
        wrong_py=(
            "from biprop.loading import operator\n"
            "@operator('x: half[T] -> y[T]')\n"
            "def norm(x):\n    return x\n"
        ),
    ),
    WrongInput(
        name="target-directory",
        argv=("folder.py:norm", "--signature", SOUND),
        fragment="names a directory",
        files={"folder.py/": ""},
    ),
    WrongInput(
        name="target-in-package",
        argv=("package/wrong.py:norm", "--signature", SOUND),
        fragment="since it lies in a package",
        files={"package/__init__.py": "", "package/wrong.py": "from . import other\n"},
    ),
)

# What only the command line reads.
WRONG_OPTIONS = (
    _option("device-unknown", "--device", "abacus", "abacus"),
    _option("device-absent", "--device", "cuda:99", "cuda:99"),
    _option("device-empty", "--device", "", "device"),
    _option("dtype-unknown", "--dtype", "float31", "float31"),
    _option("dtype-out-of-scope", "--dtype", "float8_e4m3fn", "float8_e4m3fn"),
    _option("align-odd", "--align", "3", "3"),
    _option("align-zero", "--align", "0", "0"),
    _option("threads-zero", "--threads", "0", "0"),
    _option("sdpa-backend-unknown", "--sdpa-backend", "quantum", "quantum"),
    _option("sdpa-backend-of-a-gpu", "--sdpa-backend", "cudnn", "cudnn has no kernel on the CPU"),
    _option("sdpa-backend-of-cuda", "--sdpa-backend", "efficient", "use any, math, flash, or"),
    _option("direction-unknown", "--direction", "sideways", "sideways"),
    _option("transforms-unknown", "--transforms", "T0", "T0"),
    _option("examples-zero", "--max-examples", "0", "0"),
    _option("seed-negative", "--seed", "-1", "-1"),
    _option("profile-unknown", "--profile", "fast", "fast"),
)

WRONG_INPUTS = WRONG_SIGNATURES + WRONG_DIMS + WRONG_CALLS + WRONG_TARGETS + WRONG_OPTIONS
