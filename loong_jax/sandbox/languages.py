"""Languages, as languages.toml has them: how a source is compiled, run and called.

A function of an answer is called by a driver, a file beside this one: a script that loads the
answer, or, where languages are compiled, a source that is compiled with it for this function, once
for all its calls. Its name is put in here; types are the compiler's business.
"""

import dataclasses
import functools
import itertools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    runtime_bytes: int = 16 * MB  # taken by the language's runtime before the program
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
    lent: str = ""  # the text of sites before a method of their starter code
    nodes: Mapping[str, str] = dataclasses.field(default_factory=dict)  # and declare for it

    def source(self, text: str) -> str:
        """An answer as it is compiled and run."""
        return re.sub(self.dropped, r"\1", text, count=1) if self.dropped else text

    def main(self, source: str) -> str:
        found = re.search(self.entry, source) if self.entry else None
        return found[1] if found else "Main"


_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -Xss64m -Xmx{heap}m"
_JAVAC = "-J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 -J-Xshare:auto -J-Xmx512m"


def _read(table: dict[str, Any]) -> Language:
    fields = {}
    for name, value in table.items():
        if isinstance(value, str):
            value = value.replace("{jvm}", _JVM).replace("{javac}", _JAVAC)
        if name.endswith("_mb"):
            name, value = name.replace("_mb", "_bytes"), value * MB
        fields[name] = tuple(value) if isinstance(value, list) else value
    return Language(**fields)


_TABLE = Path(__file__).with_name("languages.toml").read_text(encoding="utf-8")
LANGUAGES = {name: _read(table) for name, table in tomllib.loads(_TABLE).items()}


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


# ---- drivers, and the changes of an answer's source that they need


_MAX_CHARS, _MAX_PLACES = 1000, 100  # of a C declaration, and where one is looked for
_C_TYPE = re.compile(r"[A-Za-z_][\w\s*]*")
_C_WORDS = r"\b(?:static|inline|extern|restrict|register)\b"
_NODE = r"\b(?:struct|class)\s+%s\b[^;{}()=*&]*\{"
# What an answer in C++ defines and renames reaches what follows only.
_CPP_ANSWER = """
#define main loong_answer_main
#include "/tmp/main.cpp"
#undef main
#undef int
#undef auto
"""
_C_ANSWER = """
#define _Bool bool
extern "C" {
%s
extern decltype(&loong_prototype) const loong_function;
}
"""
_RUST_MAIN = """
#[path = "/tmp/driver.rs"]
mod loong_driver;
fn main() {
    loong_driver::run()
}
"""
_RUST_OWNER = """
impl Parameter for %(kind)s {
    fn take(_: &mut Arguments) -> Self {
        %(made)s
    }
}"""


def lends(language: Language, text: str, function: str) -> tuple[bool, ...]:
    """The tries of a method, with and without the text that sites put before it, in order."""
    if not language.lent or "." not in function:
        return (False,)
    return (False, True) if re.search(language.imports, text) else (True, False)


def source(language: Language, text: str, function: str, *, is_lent: bool = False) -> str:
    """The answer as it is compiled with its driver: without a main of its own."""
    bare = _bare(text) if language.nodes else ""
    made = [
        declared
        for name, declared in language.nodes.items()
        if re.search(rf"\b{name}\b", bare) and not re.search(_NODE % name, bare)
    ]
    if language.driver == "LoongDriver.java":  # imports stand first
        text = "\n".join([text, *made])
    elif made:
        text = "".join(made) + text
    text = language.lent + text if is_lent else text
    pattern, renamed = language.own_main
    text = re.sub(pattern, renamed, text) if pattern else text
    if language.driver == "driver.rs":
        owner = function.rpartition(".")[0]
        if owner and not _defines(text, owner):  # as sites that give an `impl` to fill in expect
            text += f"\nstruct {owner};"
        text += _RUST_MAIN
    if language.file == "main.c":  # reaches a static function too
        text += f"\n__typeof__({function}) *const loong_function = {function};\n"
    return text


def driver(language: Language, text: str, function: str = "") -> bytes:
    """The driver of a language, for this function of an answer where it is compiled."""
    driver_text = _text(language.driver)
    if function:
        owner, _, name = function.rpartition(".")
        mark = language.path_mark
        path = owner.replace(".", mark) + mark + name if owner else name
        if language.driver == "driver.go" and owner:
            path = f"(&{owner}{{}}).{name}"
        if language.driver == "driver.rs":
            path = f"crate::{path}"
            parameters = _rust_owner(text, owner) if owner else ""
            driver_text = driver_text.replace("\nOWNER_PARAMETERS\n", parameters)
        if language.file == "main.c":
            path = "*loong_function"
            declared = c_prototype(text, name, "loong_prototype")
            driver_text = driver_text.replace("\nANSWER\n", _C_ANSWER % declared)
        driver_text = driver_text.replace("\nANSWER\n", _CPP_ANSWER)
        driver_text = driver_text.replace("FUNCTION", path)
        driver_text = driver_text.replace("HAS_OWNER", "1" if owner else "0")
    return driver_text.encode()


@functools.cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _defines(text: str, owner: str) -> bool:
    return re.search(rf"\b(?:struct|enum|union|mod|trait|type)\s+{owner}\b", text) is not None


def _rust_owner(text: str, owner: str) -> str:
    """Rust code that makes the value on which a method is called."""
    if re.search(rf"\b(?:mod|trait)\s+{owner}\b", text):
        return ""
    kind = f"crate::{owner}"
    if not _defines(text, owner) or re.search(rf"\bstruct\s+{owner}\s*;", text):
        made = kind
    elif re.search(r"\bfn\s+new\s*\(\s*\)", text):
        made = f"{kind}::new()"
    elif re.search(rf"\bstruct\s+{owner}\s*\{{\s*\}}", text):
        made = f"{kind} {{}}"
    else:
        made = "::std::default::Default::default()"
    borrowed = f"Box::leak(Box::new({made}))"
    ways = {kind: made, f"&'static {kind}": borrowed, f"&'static mut {kind}": borrowed}
    return "".join(_RUST_OWNER % {"kind": kind, "made": made} for kind, made in ways.items())


def c_prototype(text: str, name: str, called: str) -> str:
    """The declaration of a C function under another name, or "" where its definition is not found.

    Looks at a bounded stretch around each place where the name stands, so its time is linear.
    """
    for found in itertools.islice(re.finditer(rf"\b{name}\s*\(", text), _MAX_PLACES):
        before = _bare(text[max(0, found.start() - _MAX_CHARS) : found.start()])
        before = re.split(r"[;{}]", before)[-1]
        parameters, bracket, after = _bare(text[found.end() :][:_MAX_CHARS]).partition(")")
        is_definition = bracket and after.lstrip().startswith("{")
        if is_definition and "(" not in parameters and _C_TYPE.fullmatch(before.strip()):
            declared = f"{before} {called}({parameters});"
            return " ".join(re.sub(_C_WORDS, " ", declared).split())
    return ""


def _bare(text: str) -> str:
    """Without comments and lines of the preprocessor, which a declaration does not need."""
    text = re.sub(r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/|//[^\n]*", " ", text)
    return re.sub(r"(?m)^[ \t]*#.*$", " ", text)
