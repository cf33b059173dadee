"""Languages as data: how a source is compiled and run, and what its toolchain is called.

In a command, `{source}` is the file in /tmp, `{main}` the class that holds `main`, and `{heap}` the
megabytes of heap that fit the memory limit. A compiler leaves what runs in /tmp/out; a run finds
it, read-only, in /app. Without a compiler the source itself is in /tmp, and `check`, where there is
one, tells a syntax error from a run-time error after a failed run.

A function of an answer is called by a driver: a script that loads the answer, or, where languages
are compiled, a source that is compiled with it for this function, once for all its calls.
"""

import dataclasses
import re
from collections.abc import Mapping

from loong_jax.errors import VerifierError

MB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One language. Sizes in bytes, times in seconds of CPU."""

    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    version: tuple[str, ...]
    package: str  # of Debian, that brings the toolchain; "" where Debian has none
    aliases: tuple[str, ...] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    runtime_bytes: int = 16 * MB  # what the language's runtime takes before the program does
    compile_bytes: int = 1024 * MB
    compile_s: float = 20.0
    has_bounded_address_space: bool = True  # false: it reserves far more than it uses
    entry: str = ""  # pattern whose first group is `{main}`
    pids: int = 64
    driver: str = ""  # beside this file: what calls a function of an answer
    call: tuple[str, ...] = ()  # how the driver is run: in /tmp, or as it was compiled
    compile_call: tuple[str, ...] = ()  # compiles an answer with `{driver}`, where one compiles
    call_needs: tuple[str, ...] = ()  # programs that compile_call uses, beside the language's own
    own_main: tuple[str, str] = ("", "")  # pattern of an answer's main, and what it becomes there
    path_mark: str = "."  # between a class and its method
    dropped: str = ""  # pattern before a source's second group, which is left out of its head
    imports: str = ""  # pattern of what a source imports by itself
    lent: str = ""  # what sites put before a method of their starter code
    nodes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # and declare for it

    @property
    def flags(self) -> str:
        """What of the recipe an artefact depends on."""
        return repr((self.file, self.compile, sorted(self.env.items())))

    def source(self, text: str) -> str:
        """An answer as it is compiled and run."""
        return re.sub(self.dropped, r"\1", text, count=1) if self.dropped else text

    def main(self, source: str) -> str:
        found = re.search(self.entry, source) if self.entry else None
        return found[1] if found else "Main"


_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xss64m", "-Xmx{heap}m")
_JAVAC = tuple(f"-J{flag}" for flag in (*_JVM[:3], "-Xmx512m"))
_PUBLIC_CLASS = r"public\s+(?:final\s+|abstract\s+)*class\s+(\w+)"
# A package, which would be a directory, behind comments alone.
_JAVA_PACKAGE = r"\A((?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*)package\s+[\w.\s]+;"
_JVM_LIMITS = {"runtime_bytes": 256 * MB, "has_bounded_address_space": False, "pids": 96}

RECIPES: dict[str, Recipe] = {
    "python": Recipe(
        file="main.py",
        run=("python3", "-I", "-B", "{source}"),
        version=("python3", "--version"),
        check=(
            "python3",
            "-I",
            "-B",
            "-c",
            "compile(open('{source}','rb').read(),'main.py','exec')",
        ),
        package="python3",
        driver="driver.py",
        call=("python3", "-I", "-B", "/tmp/driver.py"),
        aliases=("python3", "py"),
    ),
    "pypy": Recipe(
        file="main.py",
        run=("pypy3", "-I", "-B", "{source}"),
        version=("pypy3", "--version"),
        package="pypy3",
        aliases=("pypy3",),
        runtime_bytes=96 * MB,
    ),
    "c": Recipe(
        file="main.c",
        version=("gcc", "--version"),
        package="gcc",
        compile=(
            "gcc",
            "-O2",
            "-std=gnu17",
            "-pipe",
            "-w",
            "-o",
            "/tmp/out/main",
            "{source}",
            "-lm",
        ),
        run=("/app/main",),
        driver="driver.cpp",
        call_needs=("g++",),
        compile_call=(
            "sh",
            "-c",
            "gcc -O2 -std=gnu17 -pipe -w -Dmain=answer_main -c -o /tmp/main.o {source} && "
            "g++ -O2 -std=gnu++17 -pipe -w -o /tmp/out/main {driver} /tmp/main.o -lm",
        ),
        call=("/app/main",),
    ),
    "cpp": Recipe(
        file="main.cpp",
        version=("g++", "--version"),
        package="g++",
        aliases=("c++", "cxx"),
        compile=("g++", "-O2", "-std=gnu++17", "-pipe", "-w", "-o", "/tmp/out/main", "{source}"),
        run=("/app/main",),
        driver="driver.cpp",
        compile_call=(
            *("g++", "-O2", "-std=gnu++17", "-pipe", "-w", "-o", "/tmp/out/main", "{driver}"),
        ),
        call=("/app/main",),
        path_mark="::",
        imports=r"(?m)^\s*#\s*include\b",
        lent="#include <bits/stdc++.h>\nusing namespace std;\n",
        nodes={
            "ListNode": "struct ListNode { int val; ListNode *next; "
            "ListNode(int v = 0, ListNode *n = nullptr) : val(v), next(n) {} };\n",
            "TreeNode": "struct TreeNode { int val; TreeNode *left, *right; TreeNode(int v = 0, "
            "TreeNode *l = nullptr, TreeNode *r = nullptr) : val(v), left(l), right(r) {} };\n",
        },
    ),
    "rust": Recipe(
        file="main.rs",
        version=("rustc", "--version"),
        package="rustc",
        aliases=("rs",),
        compile=(
            "rustc",
            "-O",
            "--edition=2021",
            "--cap-lints=allow",
            "-o",
            "/tmp/out/main",
            "{source}",
        ),
        run=("/app/main",),
        driver="driver.rs",
        compile_call=(
            *("rustc", "-O", "--edition=2021", "--cap-lints=allow", "-o", "/tmp/out/main"),
            "{source}",
        ),
        call=("/app/main",),
        own_main=(r"(?m)^([ \t]*(?:pub[ \t]+)?fn[ \t]+)main[ \t]*\(", r"\1answer_main("),
        path_mark="::",
    ),
    "go": Recipe(
        file="main.go",
        version=("go", "version"),
        package="golang-go",
        aliases=("golang",),
        compile=("go", "build", "-o", "/tmp/out/main", "{source}"),
        run=("/app/main",),
        driver="driver.go",
        compile_call=("go", "build", "-o", "/tmp/out/main", "{source}", "{driver}"),
        call=("/app/main",),
        own_main=(r"(?m)^func[ \t]+main[ \t]*\(", "func answerMain("),
        env={
            "GOCACHE": "/tmp/cache",
            "GOPATH": "/tmp/go",
            "GO111MODULE": "off",
            "CGO_ENABLED": "0",
        },
        runtime_bytes=64 * MB,
        has_bounded_address_space=False,
        compile_s=60.0,
    ),
    "java": Recipe(
        file="{main}.java",
        version=("javac", "-version"),
        package="default-jdk-headless",
        compile=("javac", *_JAVAC, "-nowarn", "-d", "/tmp/out", "{source}"),
        run=("java", *_JVM, "-cp", "/app", "{main}"),
        driver="LoongDriver.java",
        compile_call=("javac", *_JAVAC, "-nowarn", "-d", "/tmp/out", "{source}", "{driver}"),
        call=("java", *_JVM, "-cp", "/app", "LoongDriver", "{main}"),
        entry=_PUBLIC_CLASS,
        dropped=_JAVA_PACKAGE,
        imports=r"(?m)^\s*import\s",
        lent="import java.util.*; import java.util.function.*; import java.util.stream.*; "
        "import java.math.*; ",
        nodes={
            "ListNode": "class ListNode { int val; ListNode next; ListNode() {} "
            "ListNode(int v) { val = v; } ListNode(int v, ListNode n) { val = v; next = n; } }",
            "TreeNode": "class TreeNode { int val; TreeNode left, right; TreeNode() {} "
            "TreeNode(int v) { val = v; } TreeNode(int v, TreeNode l, TreeNode r) "
            "{ val = v; left = l; right = r; } }",
        },
        **_JVM_LIMITS,
    ),
    "kotlin": Recipe(
        file="main.kt",
        version=("kotlinc", "-version"),
        package="kotlin",
        aliases=("kt",),
        compile=("kotlinc", "{source}", "-nowarn", "-include-runtime", "-d", "/tmp/out/main.jar"),
        run=("java", *_JVM, "-jar", "/app/main.jar"),
        compile_s=60.0,
        **_JVM_LIMITS,
    ),
    "scala": Recipe(
        file="Main.scala",
        version=("scalac", "-version"),
        package="scala",
        compile=("scalac", "-nowarn", "-d", "/tmp/out", "{source}"),
        run=("scala", "-cp", "/app", "Main"),
        compile_s=60.0,
        **_JVM_LIMITS,
    ),
    "csharp": Recipe(
        file="main.cs",
        version=("mcs", "--version"),
        package="mono-mcs",
        aliases=("cs", "c#"),
        compile=("mcs", "-optimize", "-nowarn:0-9999", "-out:/tmp/out/main.exe", "{source}"),
        run=("mono", "/app/main.exe"),
        runtime_bytes=96 * MB,
        has_bounded_address_space=False,
    ),
    "haskell": Recipe(
        file="main.hs",
        version=("ghc", "--version"),
        package="ghc",
        aliases=("hs",),
        compile=("ghc", "-O1", "-v0", "-outputdir", "/tmp/obj", "-o", "/tmp/out/main", "{source}"),
        run=("/app/main",),
        has_bounded_address_space=False,
        compile_s=40.0,
    ),
    "ocaml": Recipe(
        file="main.ml",
        version=("ocamlfind", "ocamlopt", "-version"),
        package="ocaml-nox ocaml-findlib",
        compile=(
            "ocamlfind",
            "ocamlopt",
            "-w",
            "-a",
            "-package",
            "str",
            "-linkpkg",
            "-o",
            "/tmp/out/main",
            "{source}",
        ),
        run=("/app/main",),
        aliases=("ml",),
    ),
    "pascal": Recipe(
        file="main.pas",
        version=("fpc", "-iV"),
        package="fp-compiler fp-units-rtl",
        aliases=("pas",),
        compile=("fpc", "-O2", "-v0e", "-FE/tmp/out", "-FU/tmp", "{source}"),
        run=("/app/main",),
    ),
    "fortran": Recipe(
        file="main.f90",
        version=("gfortran", "--version"),
        package="gfortran",
        aliases=("f90",),
        compile=("gfortran", "-O2", "-w", "-o", "/tmp/out/main", "{source}"),
        run=("/app/main",),
    ),
    "d": Recipe(
        file="main.d",
        version=("gdc", "--version"),
        package="gdc",
        aliases=("dlang",),
        compile=("gdc", "-O2", "-w", "-o", "/tmp/out/main", "{source}"),
        run=("/app/main",),
    ),
    "nim": Recipe(
        file="main.nim",
        version=("nim", "--version"),
        package="nim gcc",
        compile=(
            "nim",
            "c",
            "--hints:off",
            "--verbosity:0",
            "-d:release",
            "--nimcache:/tmp/obj",
            "-o:/tmp/out/main",
            "{source}",
        ),
        run=("/app/main",),
        compile_s=40.0,
    ),
    "ada": Recipe(
        file="main.adb",
        version=("gnatmake", "--version"),
        package="gnat",
        compile=(
            "gnatmake",
            "-q",
            "-O2",
            "-gnatws",
            "-D",
            "/tmp",
            "-o",
            "/tmp/out/main",
            "{source}",
        ),
        run=("/app/main",),
    ),
    "crystal": Recipe(
        file="main.cr",
        version=("crystal", "--version"),
        package="crystal",
        aliases=("cr",),
        compile=("crystal", "build", "--no-color", "-o", "/tmp/out/main", "{source}"),
        run=("/app/main",),
        env={"CRYSTAL_CACHE_DIR": "/tmp/cache"},
        compile_s=60.0,
        compile_bytes=2048 * MB,
        has_bounded_address_space=False,
    ),
    "assembly": Recipe(
        file="main.asm",
        version=("nasm", "--version"),
        package="nasm gcc",
        aliases=("nasm", "asm"),
        compile=(
            "sh",
            "-c",
            "nasm -f elf64 -o /tmp/main.o {source} && ld -o /tmp/out/main /tmp/main.o",
        ),
        run=("/app/main",),
    ),
    "verilog": Recipe(
        file="main.v",
        version=("iverilog", "-V"),
        package="iverilog",
        compile=("iverilog", "-g2012", "-o", "/tmp/out/main.vvp", "{source}"),
        run=("vvp", "-n", "/app/main.vvp"),
    ),
    "typescript": Recipe(
        file="main.ts",
        version=("tsc", "--version"),
        package="node-typescript nodejs",
        aliases=("ts",),
        compile=(
            "tsc",
            "--target",
            "es2020",
            "--module",
            "commonjs",
            "--moduleDetection",
            "force",
            "--outDir",
            "/tmp/out",
            "{source}",
        ),
        run=("node", "--stack-size=16000", "/app/main.js"),
        driver="driver.js",
        call=("node", "--stack-size=16000", "/tmp/driver.js", "/app/main.js"),
        runtime_bytes=128 * MB,
        compile_s=40.0,
        has_bounded_address_space=False,
    ),
    "javascript": Recipe(
        file="main.js",
        version=("node", "--version"),
        package="nodejs",
        aliases=("js", "node", "nodejs"),
        run=("node", "--stack-size=16000", "{source}"),
        driver="driver.js",
        call=("node", "--stack-size=16000", "/tmp/driver.js"),
        check=("node", "--check", "{source}"),
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "bash": Recipe(
        file="main.sh",
        version=("bash", "--version"),
        package="bash",
        aliases=("sh", "shell"),
        run=("bash", "{source}"),
        check=("bash", "-n", "{source}"),
    ),
    "perl": Recipe(
        file="main.pl",
        version=("perl", "--version"),
        package="perl-base",
        aliases=("pl",),
        run=("perl", "{source}"),
        check=("perl", "-c", "{source}"),
    ),
    "ruby": Recipe(
        file="main.rb",
        version=("ruby", "--version"),
        package="ruby",
        aliases=("rb",),
        run=("ruby", "{source}"),
        check=("ruby", "-c", "{source}"),
        driver="driver.rb",
        call=("ruby", "/tmp/driver.rb"),
        runtime_bytes=32 * MB,
    ),
    "php": Recipe(
        file="main.php",
        version=("php", "--version"),
        package="php-cli",
        run=("php", "-d", "memory_limit=-1", "-d", "display_errors=stderr", "{source}"),
        check=("php", "-l", "{source}"),
        runtime_bytes=48 * MB,
    ),
    "lua": Recipe(
        file="main.lua",
        version=("lua5.4", "-v"),
        package="lua5.4",
        aliases=("lua5.4",),
        run=("lua5.4", "{source}"),
        check=("luac5.4", "-p", "{source}"),
    ),
    "luajit": Recipe(
        file="main.lua",
        version=("luajit", "-v"),
        package="luajit",
        run=("luajit", "{source}"),
        check=("luajit", "-b", "{source}", "/dev/null"),
    ),
    "r": Recipe(
        file="main.R",
        version=("Rscript", "--version"),
        package="r-base-core",
        aliases=("R",),
        run=("Rscript", "--vanilla", "{source}"),
        check=("Rscript", "--vanilla", "-e", "invisible(parse('{source}'))"),
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "racket": Recipe(
        file="main.rkt",
        version=("racket", "--version"),
        package="racket",
        run=("racket", "{source}"),
        runtime_bytes=192 * MB,
        has_bounded_address_space=False,
    ),
    "lisp": Recipe(
        file="main.lisp",
        version=("sbcl", "--version"),
        package="sbcl",
        aliases=("sbcl", "commonlisp"),
        run=("sbcl", "--script", "{source}"),
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "scheme": Recipe(
        file="main.scm",
        version=("guile", "--version"),
        package="guile-3.0",
        aliases=("guile",),
        run=("guile", "--no-auto-compile", "-s", "{source}"),
        runtime_bytes=64 * MB,
        has_bounded_address_space=False,
    ),
    "prolog": Recipe(
        file="main.pl",
        version=("swipl", "--version"),
        package="swi-prolog-nox",
        aliases=("swipl",),
        run=("swipl", "-q", "--on-error=status", "-g", "main", "-t", "halt", "{source}"),
        runtime_bytes=64 * MB,
        has_bounded_address_space=False,
    ),
    "erlang": Recipe(
        file="main.erl",
        version=("erl", "-noshell", "-eval", "io:put_chars(erlang:system_info(version)),halt()."),
        compile=("erlc", "-o", "/tmp/out", "{source}"),
        package="erlang-base",
        aliases=("erl",),
        run=("erl", "-noshell", "-pa", "/app", "-s", "main", "main", "-s", "init", "stop"),
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "elixir": Recipe(
        file="main.exs",
        version=("elixir", "--version"),
        package="elixir",
        aliases=("exs",),
        run=("elixir", "{source}"),
        runtime_bytes=192 * MB,
        has_bounded_address_space=False,
    ),
    "tcl": Recipe(
        file="main.tcl",
        version=("sh", "-c", "echo 'puts [info patchlevel]' | tclsh"),
        package="tcl",
        run=("tclsh", "{source}"),
    ),
    "sql": Recipe(
        file="main.sql",
        version=("sqlite3", "--version"),
        package="sqlite3",
        aliases=("sqlite",),
        run=("sqlite3", "-batch", "-bail", "-init", "/dev/null", ":memory:", ".read {source}"),
    ),
    "awk": Recipe(
        file="main.awk",
        version=("sh", "-c", "awk -W version 2>&1 </dev/null"),
        package="mawk",
        run=("awk", "-f", "{source}"),
    ),
    "bc": Recipe(
        file="main.bc",
        version=("bc", "--version"),
        package="bc",
        run=("bc", "-q", "-l", "{source}"),
    ),
}

_ALIASES = {alias: name for name, recipe in RECIPES.items() for alias in recipe.aliases}


def find(language: str) -> tuple[str, Recipe]:
    """The recipe of a language by its name or an alias; VerifierError for an unknown one."""
    name = language.strip()
    name = name if name in RECIPES else name.lower()
    name = _ALIASES.get(name, name)
    if name not in RECIPES:
        raise VerifierError(f"language {language!r} is unknown. Choose one of {sorted(RECIPES)}.")
    return name, RECIPES[name]
