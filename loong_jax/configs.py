"""Configs as JSON, and what may change when a run goes on.

A config is a frozen dataclass of numbers, strings, booleans, None, paths (or URLs), dtypes, tuples,
mappings and further configs. Its JSON names the kind of every dataclass under `_kind`, so that it
reads back as what it was: a tag of `config_kinds`, or the Python path of a class without one. A
list would come back as a tuple and is refused.

Knows: config_kinds, errors, remote.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import hashlib
import importlib
import json
import logging
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from loong_jax import config_kinds, remote
from loong_jax.config_kinds import KIND
from loong_jax.errors import CheckpointError, ConfigError, shown
from loong_jax.remote import AnyPath

Json: TypeAlias = dict[str, Any] | list[Any] | str | int | float | bool | None

T = TypeVar("T")
FORMAT_VERSION = 1
_PACKAGE = "loong_jax."
_OWN_FILE = re.compile(r'"([^"]+\.py):\w+"')  # FILE.py:CLASS as a value of JSON
logger = logging.getLogger(__name__)
_RECORDED = ("loong_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "ray")

# Keys that may differ when a run goes on: they concern logging and length, never what is learnt.
FREE_ON_RESUME = (
    "*num_steps",
    "*num_*_steps",
    "*_every",
    "*_every_steps",
    "*log_*",
    "*report.*",
    "*tensorboard*",
    "*progress*",
    "pod.checkpoints",
    "pod.keep_*",
    "*placement*",  # where replicas live does not change what is trained
    "*offload_*",
    "problems.directory",  # of packages, of which it keeps the digests
    "problems.file*",  # a run keeps a copy and compares
    "data",  # of which it keeps a digest
    "data.value",
    "*collapse.*",  # when to stop, not what is learnt
    "*stall_timeout_s",
)
FREE_MESHES = ("mesh.*", "replica_mesh.*")  # another machine goes on with the run, but for rounding
_NEVER_FREE = "*schedule.*"  # the length of a schedule decides every learning rate before its end


class Difference(NamedTuple):
    """A dotted key with two values: the run's and the given one; `(absent)` where one lacks it."""

    key: str
    saved: Json
    given: Json

    @property
    def is_move(self) -> bool:
        """True where a file of your own, FILE.py:CLASS, lies in another directory.

        It may have another name too, where the class has the same and the old file is gone.
        """
        saved, given = str(self.saved), str(self.given)
        if ".py:" not in saved or ".py:" not in given:
            return False
        (old, kind), (_, new_kind) = saved.rsplit(":", 1), given.rsplit(":", 1)
        is_named_alike = saved.rpartition("/")[2] == given.rpartition("/")[2]
        return is_named_alike or (kind == new_kind and not Path(old).exists())

    def __str__(self) -> str:
        return f"{self.key}: the run has {_show(self.saved)}, you gave {_show(self.given)}"


_ABSENT = "(absent)"


def to_json(config: Any, key: str = "config") -> Json:
    """`config` as JSON values. `key` is where it stands, for the error's sake.

    Raises:
      ConfigError: a value is of no kind that a config may hold.
    """
    if config is None or isinstance(config, bool | int | str):
        return config
    if isinstance(config, float):
        if math.isfinite(config):
            return config
        return {KIND: "float", "value": repr(config)}
    if isinstance(config, AnyPath):
        return {KIND: "path", "value": str(config)}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = {
            field.name: to_json(getattr(config, field.name), f"{key}.{field.name}")
            for field in dataclasses.fields(config)
            if field.init
        }
        return {KIND: kind_name(type(config)), **fields}
    if isinstance(config, tuple) and not hasattr(config, "_fields"):
        return [to_json(value, f"{key}.{place}") for place, value in enumerate(config)]
    if isinstance(config, Mapping):
        for name in config:
            if not isinstance(name, str) or name == KIND:
                raise ConfigError(f"{key} has the key {name!r}. Use strings other than {KIND!r}.")
        return {name: to_json(value, f"{key}.{name}") for name, value in config.items()}
    dtype = as_dtype(config)
    if dtype is not None:
        return {KIND: "dtype", "value": dtype.name}
    if isinstance(config, type):
        name = config.__name__
        raise ConfigError(f"{key} is the class {name}, not an object of it. Write {name}().")
    raise ConfigError(
        f"{key} is {_show(config)}, a {type(config).__name__}, which config.json cannot hold. Use "
        "numbers, strings, booleans, tuples, mappings, paths, dtypes or frozen dataclasses."
    )


def from_json(value: Json) -> Any:
    """The config that `to_json` wrote.

    Raises:
      ConfigError: a kind is unknown here, or its fields are not those that this version has.
    """
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if KIND not in value:
        return {name: from_json(item) for name, item in value.items()}
    kind, fields = value[KIND], {name: item for name, item in value.items() if name != KIND}
    if kind == "float":
        return float(str(fields["value"]))
    if kind == "path":
        return remote.located(str(fields["value"]))
    if kind == "dtype":
        return dtype_of_name(str(fields["value"]))
    if isinstance(kind, str) and (older := config_kinds.older_kind(kind, fields)):
        return from_json(config_kinds.convert(older, fields))
    cls = _class_of_kind(kind)
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ConfigError(
            f"{kind} has no field {unknown[0]!r}; it has {sorted(known)}. Remove the field, or use "
            "the version of loong_jax that wrote it."
        )
    try:
        return cls(**{name: from_json(item) for name, item in fields.items()})
    except TypeError as error:  # a field without default is missing
        raise ConfigError(f"{kind} cannot be read: {error}. Add what is missing.") from error


def kind_name(cls: type) -> str:
    """Its tag, or its Python path without `loong_jax.` where it has none."""
    module = cls.__module__.removeprefix(_PACKAGE)
    tag = config_kinds.TAG_OF_CLASS.get(f"{module}:{cls.__qualname__}")
    return tag or f"{module}.{cls.__qualname__}"


def differences(saved: Json, given: Json, key: str = "") -> list[Difference]:
    """Every dotted key at which two configs' JSON values differ, in the order of `saved`."""
    if isinstance(saved, dict) and isinstance(given, dict):
        if saved.get(KIND) != given.get(KIND):
            kinds = [value.get(KIND, "mapping") for value in (saved, given)]
            return [Difference(key or "config", kinds[0], kinds[1])]
        names = [*saved, *(name for name in given if name not in saved)]
        pairs = [(name, saved.get(name, _ABSENT), given.get(name, _ABSENT)) for name in names]
    elif isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        pairs = [(str(place), *pair) for place, pair in enumerate(zip(saved, given, strict=True))]
    elif saved == given and isinstance(saved, bool) == isinstance(given, bool):
        return []  # 1 and 1.0, but not 1 and True
    else:
        return [Difference(key or "config", saved, given)]
    return [
        difference
        for name, old, new in pairs
        for difference in differences(old, new, f"{key}.{name}" if key else name)
    ]


def refuse_changes(
    saved: Json, given: Json, *, run_dir: Path, free: Sequence[str] = FREE_ON_RESUME
) -> list[Difference]:
    """Returns the differences that are allowed: keys that match a pattern of `free`, and moves.

    Raises:
      ConfigError: another key differs; the message holds both values of each.
    """
    found = differences(_completed(saved), given)

    def is_free(key: str) -> bool:
        matches = functools.partial(fnmatch.fnmatchcase, key)
        return not matches(_NEVER_FREE) and any(map(matches, free))

    allowed = [one for one in found if is_free(one.key) or one.is_move]
    refused = [one for one in found if one not in allowed]
    if refused:
        raise ConfigError(
            f"{run_dir} was started with other settings: "
            + "; ".join(map(str, refused))
            + ". Drop the override to go on with that run, or where a file of your own says "
            "it, give the run's value by its option; or name another --run-dir."
        )
    return allowed


def open_run(
    config: Any, run_dir: Path, *, recipe: str = "", free: Sequence[str] = FREE_ON_RESUME
) -> list[Difference]:
    """Writes `run_dir/config.json`, or checks that `config` continues the run it describes.

    A file of your own that was edited since the run's last start is warned of.

    Returns the allowed differences of a run that goes on; its config.json then holds the new ones.

    Raises:
      ConfigError: the run was started with settings that must not change.
    """
    path = run_dir / "config.json"
    given = to_json(config)
    files = map(Path, _OWN_FILE.findall(json.dumps(given, ensure_ascii=False)))
    own = {str(file): hashlib.sha256(file.read_bytes()).hexdigest()[:16]
           for file in files if file.is_file()}  # fmt: skip
    allowed = []
    if path.exists():
        before = _read(path)
        allowed = refuse_changes(before["config"], given, run_dir=run_dir, free=free)
        digests = before.get("own_files", {})
        moves = [(str(one.given), str(one.saved)) for one in allowed if one.is_move]
        came_from = {new.rpartition(":")[0]: old.rpartition(":")[0] for new, old in moves}
        for file in own:
            if digests.get(came_from.get(file, file), own[file]) != own[file]:
                logger.warning("%s was edited since %s last started, which goes on by what it says "
                               "today; another --run-dir starts anew", file, run_dir)  # fmt: skip
    run_dir.mkdir(parents=True, exist_ok=True)
    record = {"format_version": FORMAT_VERSION, "recipe": recipe, "versions": versions()}
    record |= {"own_files": own} if own else {}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({**record, "config": given}, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return allowed


@contextlib.contextmanager
def put_back_where_refused(run_dir: Path) -> Iterator[None]:
    """Leaves `run_dir/config.json` as it was before, or absent, where a ConfigError is raised."""
    path = run_dir / "config.json"
    before = path.read_bytes() if path.exists() else None
    try:
        yield
    except ConfigError:
        if before is not None:
            path.write_bytes(before)
        else:
            path.unlink(missing_ok=True)
        raise


def _completed(saved: Json) -> Json:
    """A saved config with the defaults of newer fields, which are what was done before."""
    try:
        return to_json(from_json(saved))
    except ConfigError:  # of another version, or with values that a check has come to refuse
        return saved


def load(run_dir: Path) -> Any:
    """The config of a run.

    Raises:
      CheckpointError: the directory holds no readable config.json.
      ConfigError: it names kinds or fields that this version does not have.
    """
    return from_json(_read(run_dir / "config.json")["config"])


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes."""
    found = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} holds no config.json, so it is no run. Name a run directory."
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}. Restore it.") from error
    if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
        found = record.get("format_version") if isinstance(record, dict) else None
        raise CheckpointError(
            f"{path} has format_version={found!r}, not {FORMAT_VERSION}. Use the version of "
            "loong_jax that wrote it."
        )
    return record


def _class_of_kind(kind: Json) -> type:
    """Finds a kind among the classes of loong_jax; a file can make us import nothing else.

    That is a tag, or the path of a class: where none is there today, the one of its tag.
    """
    if isinstance(kind, str):
        found = _class_at(kind) if "." in kind else None
        if found is not None:
            return found
        tag = config_kinds.tag_of_path(kind) if "." in kind else kind
        if place := config_kinds.KINDS.get(tag or ""):
            module, name = place.split(":")
            return getattr(importlib.import_module(_PACKAGE + module), name)
    raise ConfigError(
        f"config.json names the kind {kind!r}, which loong_jax does not have. Use the version that "
        "wrote it (its number is in the file)."
    )


def _class_at(path: str) -> type | None:
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        name = _PACKAGE + ".".join(parts[:split])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                continue
            raise
        for part in parts[split:]:
            found = getattr(found, part, None)
        return found if isinstance(found, type) and dataclasses.is_dataclass(found) else None
    return None


def made_from(kind: type[T], whole: Any, **others: Any) -> T:
    """The config of class `kind` whose fields are `others`, and what `whole` has by their names."""
    names = [field.name for field in dataclasses.fields(cast(Any, kind)) if field.init]
    return kind(**{name: getattr(whole, name) for name in names if hasattr(whole, name)} | others)


def as_dtype(value: Any) -> np.dtype | None:
    if isinstance(value, np.dtype):
        return value
    inner = getattr(value, "dtype", None)  # jnp.float32 is no dtype but has one
    if isinstance(inner, np.dtype) and not hasattr(value, "shape"):
        return inner
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value)
    return None


def dtype_of_name(name: str) -> np.dtype:
    if name not in np.sctypeDict:
        importlib.import_module("ml_dtypes")  # registers bfloat16 and its like
    try:
        return np.dtype(name)
    except TypeError:
        raise ConfigError(f"{name!r} is no dtype. Name one, such as 'float32'.") from None


def _show(value: Any) -> str:
    return _ABSENT if value == _ABSENT else shown(value)
