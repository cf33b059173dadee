"""Values of a config.json: numbers that are numbers, objects that are objects, rotary positions.

These are `rope_theta` and `rope_scaling`, or `rope_parameters`. Source: transformers'
modeling_rope_utils.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError
from loong_jax.models.rope import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

Json = dict[str, Any]
Config = TypeVar("Config")


def check_number(key: str, value: Any) -> None:
    """Not nan, infinite, or an integer that is too large for a float either."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and -1e300 < value < 1e300):
        raise ConfigError(
            f"config.json has {key}={value!r}, which is no finite number. Correct it, or take "
            "config.json from the checkpoint again."
        )


def check_whole(key: str, value: Any, smallest: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
        raise ConfigError(
            f"config.json has {key}={value!r}, which is no whole number >= {smallest}. Correct it, "
            "or take config.json from the checkpoint again."
        )


def refuse_values(record: Mapping[str, Any], required: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises ConfigError where a key has a value under which the model is not built here."""
    for key, allowed in required.items():
        value = record.get(key)
        if value is not None and value not in allowed:
            raise ConfigError(
                f"config.json has {key}={value!r}; only {allowed[0]!r} is built here. Choose a "
                f"checkpoint with {key}={allowed[0]!r}, or remove the key if it is wrong."
            )


def built(config_type: Callable[..., Config], fields: Json, keys: Mapping[str, Any]) -> Config:
    """The config of these fields; `keys` gives what config.json calls them, for its errors."""
    try:
        return config_type(**fields)
    except ConfigError as error:
        called = [
            f"{field} is {key} there" for field, (key, _) in keys.items() if field in str(error)
        ]
        known_as = f" ({'; '.join(called)})" if called else ""
        raise ConfigError(f"config.json: {error}{known_as}") from error


def write_dtype(record: Json, dtype: DTypeLike, stored: DTypeLike | None) -> None:
    """Names the dtype of the weights where a key does, unless files of it came with the record."""
    if stored is None or np.dtype(stored) != np.dtype(dtype):
        for key in ("torch_dtype", "dtype"):
            if record.get(key) is not None:
                record[key] = np.dtype(dtype).name


def json_object(record: Mapping[str, Any], key: str) -> Json:
    """The object under `key`, empty where there is none."""
    value = record.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(
            f"config.json has {key}={value!r}, which is no JSON object. Correct it or remove it."
        )
    return value or {}


Kind = Literal["linear", "llama3", "yarn"]

_ORIGINAL_LENGTH = "original_max_position_embeddings"
KEYS = ("rope_theta", "rope_scaling", "rope_parameters", _ORIGINAL_LENGTH)
# Key -> the field of a scaling.
_YARN_KEYS = {
    "factor": "factor",
    _ORIGINAL_LENGTH: "original_max_position",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}
_LLAMA3_KEYS = {
    "factor": "factor",
    _ORIGINAL_LENGTH: "original_max_position",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
}
_KNOWN: dict[str, tuple[str, ...]] = {
    "yarn": (*_YARN_KEYS, "attention_factor"),
    "llama3": tuple(_LLAMA3_KEYS),
    "linear": ("factor",),
}
_NUMBERS = {key for keys in _KNOWN.values() for key in keys} - {"truncate"}
_NAMES = {"linear": "linear ones", "llama3": "those of Llama 3.1", "yarn": "YaRN"}


class Rotary(NamedTuple):
    theta: float
    scaling: RopeScaling | None


def read_rotary(
    record: Mapping[str, Any], kinds: tuple[Kind, ...], *, theta: float, length: int
) -> Rotary:
    """The base of the rotary frequencies and how they are stretched.

    `theta` and `length`, the longest sequence, are meant where config.json names none. Raises
    ConfigError for scaling that is not of these kinds.
    """
    rope: Json = {}
    for key in ("rope_scaling", "rope_parameters"):
        for name, value in json_object(record, key).items():
            if rope.setdefault(name, value) != value:
                raise ConfigError(
                    f"config.json gives {name} twice, as {rope[name]!r} in rope_scaling and "
                    f"{value!r} in rope_parameters. Remove one of the two."
                )
    found = rope.pop("rope_theta", None)
    if found is None:
        found = record.get("rope_theta", theta)
    elif record.get("rope_theta") not in (None, found):
        raise ConfigError(
            f"config.json has rope_theta={record['rope_theta']} and {found} in rope_parameters. "
            "Remove one of the two."
        )
    check_number("rope_theta", found)
    return Rotary(float(found), _scaling(record, rope, kinds, length))


def write_rotary(rotary: Rotary) -> Json:
    """The keys that `read_rotary` reads so."""
    theta, scaling = rotary
    rope: Json
    match scaling:
        case None:
            return {"rope_theta": theta}
        case YarnScaling():
            rope = {key: getattr(scaling, field) for key, field in _YARN_KEYS.items()}
            if scaling.truncate:
                del rope["truncate"]
            rope |= {"rope_type": "yarn", "attention_factor": scaling.pair_scale}
        case Llama3Scaling():
            rope = {key: getattr(scaling, field) for key, field in _LLAMA3_KEYS.items()}
            rope["rope_type"] = "llama3"
        case LinearScaling():
            rope = {"rope_type": "linear", "factor": scaling.factor}
    return {"rope_theta": theta, "rope_scaling": rope}


def _scaling(
    record: Mapping[str, Any], rope: Json, kinds: tuple[Kind, ...], length: int
) -> RopeScaling | None:
    kind, other = rope.pop("rope_type", None), rope.pop("type", None)
    kind = kind or other
    partial = rope.pop("partial_rotary_factor", None)
    for share in (partial, record.get("partial_rotary_factor")):
        if share not in (None, 1):
            raise _not_built(f"partial_rotary_factor={share!r}", kinds)
    if kind is None and (scaled := [key for key in _YARN_KEYS if rope.get(key) is not None]):
        raise ConfigError(
            f"config.json has {scaled[0]}={rope[scaled[0]]!r} among its rotary parameters and no "
            'rope_type that says how they are stretched. Add "rope_type": "yarn" if it is YaRN, or '
            "remove the parameters."
        )
    kind = kind or "default"
    if kind not in ("default", *kinds):
        raise _not_built(f"type {kind!r}", kinds)
    known = set(_NUMBERS) | {"truncate"} if kind == "default" else set(_KNOWN[kind])
    if odd := [key for key in rope if key not in known]:
        raise _not_built(f"{odd[0]}={rope[odd[0]]!r}", kinds)
    if kind == "default":
        return None
    for key in _NUMBERS & set(rope):
        if rope[key] is not None:
            check_number(key, rope[key])
    if kind != "yarn" and rope.get("factor") is None:
        raise ConfigError(
            f'config.json stretches rotary positions by "{kind}" and gives no factor. Add it.'
        )
    original = _original_length(record, rope) or length
    match kind:
        case "linear":
            return LinearScaling(factor=float(rope["factor"]))
        case "llama3":
            return Llama3Scaling(
                factor=float(rope["factor"]),
                original_max_position=original,
                low_freq_factor=float(_given(rope, "low_freq_factor", 1)),
                high_freq_factor=float(_given(rope, "high_freq_factor", 4)),
            )
    return _yarn(rope, original, length)


def _yarn(rope: Json, original: Any, length: int) -> YarnScaling:
    truncate = _given(rope, "truncate", True)
    if not isinstance(truncate, bool):
        raise ConfigError(
            f"config.json has truncate={truncate!r} among its rotary parameters, and it is true or "
            "false. Correct it."
        )
    factor = rope.get("factor")
    yarn = YarnScaling(
        factor=float(length / original if factor is None else factor),
        original_max_position=original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        mscale=float(rope.get("mscale") or 0),
        mscale_all_dim=float(rope.get("mscale_all_dim") or 0),
        truncate=truncate,
    )
    scale = rope.get("attention_factor")
    if scale is None and not (yarn.mscale and yarn.mscale_all_dim):
        scale = dataclasses.replace(yarn, mscale=1.0, mscale_all_dim=0.0).pair_scale
    if scale is not None and not math.isclose(scale, yarn.pair_scale, rel_tol=1e-12):
        yarn = dataclasses.replace(yarn, rotary_scale=float(scale))
    return yarn


def _given(rope: Json, key: str, default: Any) -> Any:
    value = rope.get(key)
    return default if value is None else value


def _not_built(what: str, kinds: tuple[Kind, ...]) -> ConfigError:
    built = ", ".join(("plain ones", *(_NAMES[kind] for kind in kinds)))
    return ConfigError(
        f"config.json asks for rotary positions with {what}; {built} are built here. Remove it if "
        "the model was not trained with it."
    )


def _original_length(record: Mapping[str, Any], rope: Json) -> Any:
    """The original length, inside the rope record or beside it, which transformers takes first."""
    inner, outer = rope.get(_ORIGINAL_LENGTH), record.get(_ORIGINAL_LENGTH)
    if outer is not None:
        check_number(_ORIGINAL_LENGTH, outer)
        if inner not in (None, outer):
            raise ConfigError(
                f"config.json has {_ORIGINAL_LENGTH}={outer} and {inner} among its rotary "
                "parameters. Remove one of the two."
            )
    return inner or outer
