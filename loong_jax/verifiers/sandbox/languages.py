"""Languages as data: how a source is compiled and run, and what its toolchain is called.

Commands are written as a shell reads them. In them `{source}` is the file in /tmp, `{main}` the
class that holds `main`, and `{heap}` the megabytes of heap that fit the memory limit. A compiler
leaves what runs in /tmp/out; a run finds it, read-only, in /app. Without a compiler the source
itself is in /tmp, and `check`, where there is one, tells a syntax error from a run-time error
after a failed run.

A function of an answer is called by a driver: a script that loads the answer, or, where languages
are compiled, a source that is compiled with it for this function, once for all its calls.
"""

import dataclasses
import re
from collections.abc import Mapping

from loong_jax.errors import VerifierError

MB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language:
    """Sizes in bytes, times in seconds of CPU."""

    file: str
    package: str  # of Debian, that brings the toolchain; "" where Debian has none
    version: str
    run: str = "/app/main"
    compile: str = ""
    check: str = ""
    aliases: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    runtime_bytes: int = 16 * MB  # what the language's runtime takes before the program does
    compile_bytes: int = 1024 * MB
    compile_s: float = 20.0
    has_bounded_address_space: bool = True  # false: it reserves far more than it uses
    entry: str = ""  # pattern whose first group is `{main}`
    pids: int = 64
    driver: str = ""  # beside this file: what calls a function of an answer
    call: str = ""  # how the driver is run: in /tmp, or as it was compiled
    compile_call: str = ""  # compiles an answer with `{driver}`, where one compiles
    call_needs: tuple[str, ...] = ()  # programs that compile_call uses, beside the language's own
    own_main: tuple[str, str] = ("", "")  # pattern of an answer's main, and what it becomes there
    path_mark: str = "."  # between a class and its method
    dropped: str = ""  # pattern before a source's second group, which is left out of its head
    imports: str = ""  # pattern of what a source imports by itself
    lent: str = ""  # what sites put before a method of their starter code
    nodes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # and declare for it

    def source(self, text: str) -> str:
        """An answer as it is compiled and run."""
        return re.sub(self.dropped, r"\1", text, count=1) if self.dropped else text

    def main(self, source: str) -> str:
        found = re.search(self.entry, source) if self.entry else None
        return found[1] if found else "Main"


_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -Xss64m -Xmx{heap}m"
_JAVAC = "-J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 -J-Xshare:auto -J-Xmx512m"
_PUBLIC_CLASS = r"public\s+(?:final\s+|abstract\s+)*class\s+(\w+)"
# A package, which would be a directory, behind comments alone.
_JAVA_PACKAGE = r"\A((?:\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*)package\s+[\w.\s]+;"
_JVM_LIMITS = {"runtime_bytes": 256 * MB, "has_bounded_address_space": False, "pids": 96}
_CPP_NODES = {
    "ListNode": "struct ListNode { int val; ListNode *next; "
    "ListNode(int v = 0, ListNode *n = nullptr) : val(v), next(n) {} };\n",
    "TreeNode": "struct TreeNode { int val; TreeNode *left, *right; TreeNode(int v = 0, "
    "TreeNode *l = nullptr, TreeNode *r = nullptr) : val(v), left(l), right(r) {} };\n",
}
_JAVA_NODES = {
    "ListNode": "class ListNode { int val; ListNode next; ListNode() {} "
    "ListNode(int v) { val = v; } ListNode(int v, ListNode n) { val = v; next = n; } }",
    "TreeNode": "class TreeNode { int val; TreeNode left, right; TreeNode() {} "
    "TreeNode(int v) { val = v; } TreeNode(int v, TreeNode l, TreeNode r) "
    "{ val = v; left = l; right = r; } }",
}

LANGUAGES: dict[str, Language] = {
    "python": Language(
        file="main.py",
        package="python3",
        aliases="python3 py",
        version="python3 --version",
        run="python3 -I -B {source}",
        check="""python3 -I -B -c "compile(open('{source}','rb').read(),'main.py','exec')" """,
        driver="driver.py",
        call="python3 -I -B /tmp/driver.py",
    ),
    "pypy": Language(
        file="main.py",
        package="pypy3",
        aliases="pypy3",
        version="pypy3 --version",
        run="pypy3 -I -B {source}",
        runtime_bytes=96 * MB,
    ),
    "c": Language(
        file="main.c",
        package="gcc",
        version="gcc --version",
        compile="gcc -O2 -std=gnu17 -pipe -w -o /tmp/out/main {source} -lm",
        driver="driver.cpp",
        compile_call="sh -c 'gcc -O2 -std=gnu17 -pipe -w -Dmain=answer_main -c -o /tmp/main.o "
        "{source} && g++ -O2 -std=gnu++17 -pipe -w -o /tmp/out/main {driver} /tmp/main.o -lm'",
        call="/app/main",
        call_needs=("g++",),
    ),
    "cpp": Language(
        file="main.cpp",
        package="g++",
        aliases="c++ cxx",
        version="g++ --version",
        compile="g++ -O2 -std=gnu++17 -pipe -w -o /tmp/out/main {source}",
        driver="driver.cpp",
        compile_call="g++ -O2 -std=gnu++17 -pipe -w -o /tmp/out/main {driver}",
        call="/app/main",
        path_mark="::",
        imports=r"(?m)^\s*#\s*include\b",
        lent="#include <bits/stdc++.h>\nusing namespace std;\n",
        nodes=_CPP_NODES,
    ),
    "rust": Language(
        file="main.rs",
        package="rustc",
        aliases="rs",
        version="rustc --version",
        compile="rustc -O --edition=2021 --cap-lints=allow -o /tmp/out/main {source}",
        driver="driver.rs",
        compile_call="rustc -O --edition=2021 --cap-lints=allow -o /tmp/out/main {source}",
        call="/app/main",
        own_main=(r"(?m)^([ \t]*(?:pub[ \t]+)?fn[ \t]+)main[ \t]*\(", r"\1answer_main("),
        path_mark="::",
    ),
    "go": Language(
        file="main.go",
        package="golang-go",
        aliases="golang",
        version="go version",
        compile="go build -o /tmp/out/main {source}",
        driver="driver.go",
        compile_call="go build -o /tmp/out/main {source} {driver}",
        call="/app/main",
        own_main=(r"(?m)^func[ \t]+main[ \t]*\(", r"func answerMain("),
        env={
            "GOCACHE": "/tmp/cache",
            "GOPATH": "/tmp/go",
            "GO111MODULE": "off",
            "CGO_ENABLED": "0",
        },
        runtime_bytes=64 * MB,
        compile_s=60.0,
        has_bounded_address_space=False,
    ),
    "java": Language(
        file="{main}.java",
        package="default-jdk-headless",
        version="javac -version",
        compile="javac " + _JAVAC + " -nowarn -d /tmp/out {source}",
        run="java " + _JVM + " -cp /app {main}",
        driver="LoongDriver.java",
        compile_call="javac " + _JAVAC + " -nowarn -d /tmp/out {source} {driver}",
        call="java " + _JVM + " -cp /app LoongDriver {main}",
        entry=_PUBLIC_CLASS,
        dropped=_JAVA_PACKAGE,
        imports=r"(?m)^\s*import\s",
        lent="import java.util.*; import java.util.function.*; import java.util.stream.*; "
        "import java.math.*; ",
        nodes=_JAVA_NODES,
        **_JVM_LIMITS,
    ),
    "kotlin": Language(
        file="main.kt",
        package="kotlin",
        aliases="kt",
        version="kotlinc -version",
        compile="kotlinc {source} -nowarn -include-runtime -d /tmp/out/main.jar",
        run="java " + _JVM + " -jar /app/main.jar",
        compile_s=60.0,
        **_JVM_LIMITS,
    ),
    "scala": Language(
        file="Main.scala",
        package="scala",
        version="scalac -version",
        compile="scalac -nowarn -d /tmp/out {source}",
        run="scala -cp /app Main",
        compile_s=60.0,
        **_JVM_LIMITS,
    ),
    "csharp": Language(
        file="main.cs",
        package="mono-mcs",
        aliases="cs c#",
        version="mcs --version",
        compile="mcs -optimize -nowarn:0-9999 -out:/tmp/out/main.exe {source}",
        run="mono /app/main.exe",
        runtime_bytes=96 * MB,
        has_bounded_address_space=False,
    ),
    "haskell": Language(
        file="main.hs",
        package="ghc",
        aliases="hs",
        version="ghc --version",
        compile="ghc -O1 -v0 -outputdir /tmp/obj -o /tmp/out/main {source}",
        compile_s=40.0,
        has_bounded_address_space=False,
    ),
    "ocaml": Language(
        file="main.ml",
        package="ocaml-nox ocaml-findlib",
        aliases="ml",
        version="ocamlfind ocamlopt -version",
        compile="ocamlfind ocamlopt -w -a -package str -linkpkg -o /tmp/out/main {source}",
    ),
    "pascal": Language(
        file="main.pas",
        package="fp-compiler fp-units-rtl",
        aliases="pas",
        version="fpc -iV",
        compile="fpc -O2 -v0e -FE/tmp/out -FU/tmp {source}",
    ),
    "fortran": Language(
        file="main.f90",
        package="gfortran",
        aliases="f90",
        version="gfortran --version",
        compile="gfortran -O2 -w -o /tmp/out/main {source}",
    ),
    "d": Language(
        file="main.d",
        package="gdc",
        aliases="dlang",
        version="gdc --version",
        compile="gdc -O2 -w -o /tmp/out/main {source}",
    ),
    "nim": Language(
        file="main.nim",
        package="nim gcc",
        version="nim --version",
        compile="nim c --hints:off --verbosity:0 -d:release --nimcache:/tmp/obj -o:/tmp/out/main "
        "{source}",
        compile_s=40.0,
    ),
    "ada": Language(
        file="main.adb",
        package="gnat",
        version="gnatmake --version",
        compile="gnatmake -q -O2 -gnatws -D /tmp -o /tmp/out/main {source}",
    ),
    "crystal": Language(
        file="main.cr",
        package="crystal",
        aliases="cr",
        version="crystal --version",
        compile="crystal build --no-color -o /tmp/out/main {source}",
        env={"CRYSTAL_CACHE_DIR": "/tmp/cache"},
        compile_bytes=2048 * MB,
        compile_s=60.0,
        has_bounded_address_space=False,
    ),
    "assembly": Language(
        file="main.asm",
        package="nasm gcc",
        aliases="nasm asm",
        version="nasm --version",
        compile="sh -c 'nasm -f elf64 -o /tmp/main.o {source} && ld -o /tmp/out/main /tmp/main.o'",
    ),
    "verilog": Language(
        file="main.v",
        package="iverilog",
        version="iverilog -V",
        compile="iverilog -g2012 -o /tmp/out/main.vvp {source}",
        run="vvp -n /app/main.vvp",
    ),
    "typescript": Language(
        file="main.ts",
        package="node-typescript nodejs",
        aliases="ts",
        version="tsc --version",
        compile="tsc --target es2020 --module commonjs --moduleDetection force --outDir /tmp/out "
        "{source}",
        run="node --stack-size=16000 /app/main.js",
        driver="driver.js",
        call="node --stack-size=16000 /tmp/driver.js /app/main.js",
        runtime_bytes=128 * MB,
        compile_s=40.0,
        has_bounded_address_space=False,
    ),
    "javascript": Language(
        file="main.js",
        package="nodejs",
        aliases="js node nodejs",
        version="node --version",
        run="node --stack-size=16000 {source}",
        check="node --check {source}",
        driver="driver.js",
        call="node --stack-size=16000 /tmp/driver.js",
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "bash": Language(
        file="main.sh",
        package="bash",
        aliases="sh shell",
        version="bash --version",
        run="bash {source}",
        check="bash -n {source}",
    ),
    "perl": Language(
        file="main.pl",
        package="perl-base",
        aliases="pl",
        version="perl --version",
        run="perl {source}",
        check="perl -c {source}",
    ),
    "ruby": Language(
        file="main.rb",
        package="ruby",
        aliases="rb",
        version="ruby --version",
        run="ruby {source}",
        check="ruby -c {source}",
        driver="driver.rb",
        call="ruby /tmp/driver.rb",
        runtime_bytes=32 * MB,
    ),
    "php": Language(
        file="main.php",
        package="php-cli",
        version="php --version",
        run="php -d memory_limit=-1 -d display_errors=stderr {source}",
        check="php -l {source}",
        runtime_bytes=48 * MB,
    ),
    "lua": Language(
        file="main.lua",
        package="lua5.4",
        aliases="lua5.4",
        version="lua5.4 -v",
        run="lua5.4 {source}",
        check="luac5.4 -p {source}",
    ),
    "luajit": Language(
        file="main.lua",
        package="luajit",
        version="luajit -v",
        run="luajit {source}",
        check="luajit -b {source} /dev/null",
    ),
    "r": Language(
        file="main.R",
        package="r-base-core",
        aliases="R",
        version="Rscript --version",
        run="Rscript --vanilla {source}",
        check="Rscript --vanilla -e \"invisible(parse('{source}'))\"",
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "racket": Language(
        file="main.rkt",
        package="racket",
        version="racket --version",
        run="racket {source}",
        runtime_bytes=192 * MB,
        has_bounded_address_space=False,
    ),
    "lisp": Language(
        file="main.lisp",
        package="sbcl",
        aliases="sbcl commonlisp",
        version="sbcl --version",
        run="sbcl --script {source}",
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "scheme": Language(
        file="main.scm",
        package="guile-3.0",
        aliases="guile",
        version="guile --version",
        run="guile --no-auto-compile -s {source}",
        runtime_bytes=64 * MB,
        has_bounded_address_space=False,
    ),
    "prolog": Language(
        file="main.pl",
        package="swi-prolog-nox",
        aliases="swipl",
        version="swipl --version",
        run="swipl -q --on-error=status -g main -t halt {source}",
        runtime_bytes=64 * MB,
        has_bounded_address_space=False,
    ),
    "erlang": Language(
        file="main.erl",
        package="erlang-base",
        aliases="erl",
        version="erl -noshell -eval 'io:put_chars(erlang:system_info(version)),halt().'",
        compile="erlc -o /tmp/out {source}",
        run="erl -noshell -pa /app -s main main -s init stop",
        runtime_bytes=128 * MB,
        has_bounded_address_space=False,
    ),
    "elixir": Language(
        file="main.exs",
        package="elixir",
        aliases="exs",
        version="elixir --version",
        run="elixir {source}",
        runtime_bytes=192 * MB,
        has_bounded_address_space=False,
    ),
    "tcl": Language(
        file="main.tcl",
        package="tcl",
        version="sh -c \"echo 'puts [info patchlevel]' | tclsh\"",
        run="tclsh {source}",
    ),
    "sql": Language(
        file="main.sql",
        package="sqlite3",
        aliases="sqlite",
        version="sqlite3 --version",
        run="sqlite3 -batch -bail -init /dev/null :memory: '.read {source}'",
    ),
    "awk": Language(
        file="main.awk",
        package="mawk",
        version="sh -c 'awk -W version 2>&1 </dev/null'",
        run="awk -f {source}",
    ),
    "bc": Language(file="main.bc", package="bc", version="bc --version", run="bc -q -l {source}"),
}


def names_of(language: str) -> list[str]:
    """The name and the aliases of a language; none for an unknown one."""
    wanted = language.strip()
    for word in (wanted, wanted.lower()):
        for name, one in LANGUAGES.items():
            if word in (known := [name, *one.aliases.split()]):
                return known
    return []


def find(language: str) -> tuple[str, Language]:
    """A language by its name or an alias; VerifierError for an unknown one."""
    if not (names := names_of(language)):
        raise VerifierError(f"language {language!r} is unknown. Choose one of {sorted(LANGUAGES)}.")
    return names[0], LANGUAGES[names[0]]
