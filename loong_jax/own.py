"""Parts of your own, from a file: `FILE.py:FUNCTION` or `FILE.py:CLASS`.

What such a file raises ends as one line that names it; LOONG_TRACEBACK=1 shows where it arose.

Knows: errors.
"""

import dataclasses
import functools
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import tyro

from loong_jax.errors import ConfigError, LoongError


def own_function(name: str) -> Callable[..., Any]:
    """What `FILE.py:FUNCTION` names; a call of it raises ConfigError for whatever it raises.

    A class is returned as it is. ConfigError where there is no such function.
    """
    file, _, function = name.rpartition(":")
    if not Path(file).is_file():
        raise ConfigError(f"{file} is no file. Name the one that holds {function}.")
    place = str(Path(file).resolve())
    found = _within(file, runpy.run_path, place, run_name=place).get(function)
    if not callable(found):
        raise ConfigError(
            f"{file} has no function {function!r}, nor a class. Write `def {function}(...):` or "
            f"`class {function}:` there."
        )
    if isinstance(found, type):
        return found

    @functools.wraps(found)
    def called(*arguments: Any) -> Any:
        try:
            inspect.signature(found).bind(*arguments)
        except TypeError as error:
            takes = "the stage" if arguments else "nothing"
            raise ConfigError(
                f"{name}: {error}. Write {function} so that it takes {takes}."
            ) from None
        return _within(name, found, *arguments)

    return called


def absolute(name: str) -> str:
    """FILE.py:CLASS with the whole path, by which a run finds it again from anywhere."""
    file, _, kind = name.rpartition(":")
    return f"{Path(file).resolve()}:{kind}"


def built(name: str, **settings: Any) -> Any:
    """What the class that `FILE.py:CLASS` names makes of `settings`."""
    return _within(name, own_function(name), **settings)


def _within(name: str, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    try:
        return function(*arguments, **settings)
    except LoongError:
        raise
    except Exception as error:
        file = str(Path(name.rpartition(":")[0] or name).resolve())
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        at = f", line {lines[-1]}," if lines else ""
        raise ConfigError(
            f"{name}{at} raised {type(error).__name__}: {error}. Correct it there."
        ) from error


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
        return built(self.kind, **self.settings)

    def __getattr__(self, name: str) -> Any:
        """A setting, or else what the part has of that name."""
        if name.startswith("__") or name in ("kind", "settings"):  # of a copy in the making
            raise AttributeError(name)
        if name in self.settings:
            return self.settings[name]
        found = getattr(self.part, name)
        return functools.partial(_within, self.kind, found) if inspect.ismethod(found) else found


class Contract(NamedTuple):
    """What a part of a config may be: one of ours, or one of your own that has what it needs."""

    kinds: Any  # ours, a union
    needs: Sequence[str]
    page: str


def named(name: str, contract: Contract, known: Mapping[str, Any]) -> Any:
    """The part that the class FILE.py:CLASS makes, with those of the fields `known` that it has."""
    fields = inspect.signature(own_function(name)).parameters
    part = built(name, **{field: value for field, value in known.items() if field in fields})
    return as_own(part, name, contract)


def as_own(part: Any, what: str, contract: Contract) -> Any:
    """A part of your own as an `OwnPart`; as it is where it is ours, or no file has its class.

    ConfigError unless it is a dataclass at the top of its file that has what the contract says.
    """
    cls = type(part)
    ours = get_args(contract.kinds)
    if cls in ours:
        return part
    refuse_lacking(part, what, contract)
    module = cls.__module__
    if not dataclasses.is_dataclass(part) or module.startswith("loong_jax."):
        raise ConfigError(
            f"{what}={part!r:.80} is none of {', '.join(kind.__name__ for kind in ours)}, and no "
            f"frozen dataclass of your own. {contract.page} says what it takes."
        )
    file = module if module.endswith(".py") else getattr(sys.modules[module], "__file__", None)
    if file is None:
        return part
    if "." in cls.__qualname__:
        raise ConfigError(
            f"{what}={part!r:.80} is of a class inside of {cls.__qualname__.split('.')[0]}, where "
            "a run that goes on cannot find it. Move the class to the top of its file."
        )
    settings = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return OwnPart(kind=f"{Path(file).resolve()}:{cls.__name__}", settings=settings)


def refuse_lacking(part: Any, what: str, contract: Contract) -> None:
    """ConfigError where it has not what the contract says."""
    if missing := [name for name in contract.needs if not hasattr(part, name)]:
        raise ConfigError(
            f"{what}={part!r:.80} is none of ours and lacks {', '.join(missing)}. {contract.page} "
            "says what it takes."
        )


def part_of(part: Any) -> Any:
    """What computes: of an `OwnPart` what it stands for."""
    return part.part if isinstance(part, OwnPart) else part
