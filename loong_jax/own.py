"""Parts of your own, from a file: `FILE.py:FUNCTION` or `FILE.py:CLASS`.

What such a file raises ends as one line that names it; LOONG_TRACEBACK=1 shows where it arose.

Knows: errors.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import tyro

from loong_jax.errors import ConfigError, LoongError, line_in, raised, shown


def own_function(name: str) -> Callable[..., Any]:
    """The function `FILE.py:FUNCTION`; a call of it raises ConfigError for whatever it raises.

    A class is returned as it is. ConfigError where there is no such function.
    """
    file, _, function = name.rpartition(":")
    if not file or not function:
        raise ConfigError(f"{name!r} is not of the form FILE.py:NAME. Name both, file and part.")
    if not Path(file).is_file():
        beside = [path.name for path in Path(file).parent.glob("*.py")]
        meant = difflib.get_close_matches(Path(file).name, beside, 1)
        raise ConfigError(
            f"{file} is missing, which is to hold {function}. Put it there, or name the file where "
            "it lies; a run that goes on takes it by the options that named it first (--verifier, "
            f"--rl.scheduler, --rl.objective and its settings, --fused.method), and {function} and "
            "the file of a verifier keep their names."
            + (f" Beside it is {meant[0]}." if meant else "")
        )
    place = str(Path(file).resolve())
    read = functools.partial(runpy.run_path, place, run_name=place)
    names = _within(file, read)
    found = names.get(function)
    if not callable(found):
        its = [name for name, value in names.items() if getattr(value, "__module__", "") == place]
        raise ConfigError(
            f"{file} has no function and no class {function!r}. Write `def {function}(...):` or "
            f"`class {function}:` in it (it keeps the name that a run began with), or name one "
            f"that it has: {', '.join(its) or 'none'}."
        )
    if isinstance(found, type):
        return found

    @functools.wraps(found)
    def called(*arguments: Any) -> Any:
        try:
            inspect.signature(found).bind(*arguments)
        except TypeError as error:
            remedy = f"Write {function} so that it takes one argument, the stage."
            if not arguments:
                remedy = "Name a class of the file, or a function that takes no arguments."
            raise ConfigError(f"{name} cannot be called: {error}. {remedy}") from None
        return _within(name, found, *arguments)

    return called


def absolute(name: str) -> str:
    """FILE.py:CLASS with the whole path, by which a run finds it again from anywhere."""
    file, colon, kind = name.rpartition(":")
    return f"{Path(file).resolve()}:{kind}" if colon else name


def built(name: str, settings: Mapping[str, Any]) -> Any:
    """An object of the class `FILE.py:CLASS`, made with `settings`.

    ConfigError where it has no such field, as one that was renamed since a run began.
    """
    kind = own_function(name)
    fields = inspect.signature(kind).parameters
    if unknown := sorted(settings.keys() - fields.keys()):
        raise ConfigError(
            f"{name} has no field {unknown[0]!r}, and {unknown[0]}={shown(settings[unknown[0]])} "
            f"was chosen when the run began. Its fields: {', '.join(fields) or 'none'}. Name it as "
            "it was, or begin anew with another --run-dir."
        )
    return _within(name, functools.partial(kind, **settings))


def call(part: Any, method: str, *arguments: Any) -> Any:
    """Calls a method of a part; ConfigError for whatever one of your own raises."""
    function, place = getattr(part, method), place_of(type(part))
    return _within(place, function, *arguments) if ":" in place else function(*arguments)


def place_of(cls: type) -> str:
    """FILE.py:CLASS of a class of your own; the name of one of ours, or of a notebook."""
    file = None if cls.__module__.startswith("loong_jax.") else _file_of(cls)
    return cls.__name__ if file is None else f"{file}:{cls.__name__}"


def name_of(part: Any) -> str:
    """FILE.py:CLASS of a part of your own; the name of the class of another."""
    return part.kind if isinstance(part, OwnPart) else place_of(type(part))


def _file_of(cls: type) -> str | None:
    """The file at whose top a class stands; None of one of a notebook."""
    module = cls.__module__
    return module if module.endswith(".py") else getattr(sys.modules[module], "__file__", None)


def _within(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    file = str(Path(name.rpartition(":")[0] or name).resolve())
    try:
        return function(*arguments)
    except LoongError as error:
        if not (own_line := line_in(file, error)) or Path(file).name in str(error):
            raise
        raise ConfigError(f"{name}{own_line}: {error}") from error
    except (Exception, SystemExit) as error:
        remedy = "Correct it there."
        is_of_jax = type(error).__module__ == "jax.errors" and not isinstance(error, RuntimeError)
        if is_of_jax or "truth value of an array" in str(error):
            remedy = "JAX traces it and knows no values yet: use jnp.where for `if`, jnp for np."
        elif "__init__() missing" in str(error):
            remedy = "Give each such argument or field a default."
        raise ConfigError(f"{name}{raised(error, file)}. {remedy}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnPart:
    """A part of your own: the frozen dataclass that `kind` names, and its fields.

    Its file is read once it is to compute or decide something, so again when a run goes on.
    """

    kind: str  # FILE.py:CLASS
    settings: Annotated[Mapping[str, Any], tyro.conf.arg(name="")]  # its fields

    def __hash__(self) -> int:  # programs are shared by equal objectives
        return hash((self.kind, repr(sorted(self.settings.items()))))

    @functools.cached_property
    def part(self) -> Any:
        return built(self.kind, self.settings)

    def __getattr__(self, name: str) -> Any:
        """A setting, or else what the part has of that name."""
        if name.startswith("__") or name in ("kind", "settings"):  # of a copy in the making
            raise AttributeError(name)
        if name in self.settings:
            return self.settings[name]
        found = getattr(self.part, name)
        return functools.partial(_within, self.kind, found) if inspect.ismethod(found) else found


class Contract(NamedTuple):
    """The kinds allowed for a part of a config: ours, or one of your own with these attributes."""

    kinds: Any  # ours, a union
    needs: Sequence[str]
    page: str
    remedy: str = "Add what is missing"


def named(name: str, contract: Contract, known: Mapping[str, Any]) -> Any:
    """The part that the class FILE.py:CLASS makes, with those of the fields `known` that it has."""
    fields = inspect.signature(own_function(name)).parameters
    part = built(name, {field: value for field, value in known.items() if field in fields})
    return as_own(part, name, contract)


def as_own(part: Any, what: str, contract: Contract) -> Any:
    """A part of your own as an `OwnPart`; as it is where it is ours, or no file has its class.

    ConfigError unless it is a dataclass at the top of its file that has what the contract says.
    """
    if isinstance(part, type):
        raise ConfigError(
            f"{what}={part.__name__} is a class. Give an object of it: {part.__name__}()."
        )
    cls = type(part)
    if cls in get_args(contract.kinds):
        return part
    refuse_lacking(part, what, contract)
    module = cls.__module__
    is_frozen = dataclasses.is_dataclass(part) and getattr(part, "__dataclass_params__").frozen  # noqa: B009
    if not is_frozen or module.startswith("loong_jax."):
        raise ConfigError(
            f"{what}={shown(part)} is neither a frozen dataclass of your own nor a part of ours. "
            f"Write @dataclasses.dataclass(frozen=True) above its class; {contract.page} has one."
        )
    if (file := _file_of(cls)) is None:
        return part
    if "." in cls.__qualname__:
        raise ConfigError(
            f"{what}={shown(part)}: its class is defined inside {cls.__qualname__.split('.')[0]}, "
            "where a resumed run cannot find it. Move the class to the top level of its file."
        )
    settings = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    if clash := sorted(settings.keys() & {"kind", "settings", "part"}):  # those of OwnPart
        raise ConfigError(
            f"{what}: its class {cls.__name__} has a field {clash[0]!r}, a name that is taken. "
            "Give the field another."
        )
    return OwnPart(kind=f"{Path(file).resolve()}:{cls.__name__}", settings=settings)


def refuse_lacking(part: Any, what: str, contract: Contract) -> None:
    """ConfigError where it has not what the contract says."""
    if missing := [name for name in contract.needs if not hasattr(part, name)]:
        raise ConfigError(
            f"{what}: its class {type(part).__name__} lacks {', '.join(missing)}. "
            f"{contract.remedy}; {contract.page} says what it needs."
        )


def comments(part: OwnPart) -> dict[str, str]:
    """The comments beside the fields of its class: their help, as it is that of ours."""
    file, _, name = part.kind.rpartition(":")
    if not Path(file).is_file():  # of a run that is only looked at
        return {}
    text = Path(file).read_text(encoding="utf-8")
    kinds = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    lines = text.splitlines()
    return {
        node.target.id: lines[(node.end_lineno or 1) - 1].partition("#")[2].strip()
        for kind in kinds
        if kind.name == name
        for node in kind.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def docstring(part: Any) -> str | None:
    """The words of the class of an `OwnPart`; None of any other part."""
    return inspect.getdoc(type(part.part)) if isinstance(part, OwnPart) else None


def part_of(part: Any) -> Any:
    """The part itself: of an `OwnPart` the object that it stands for."""
    return part.part if isinstance(part, OwnPart) else part
