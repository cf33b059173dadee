"""Values of a config.json: numbers that are numbers, objects that are objects."""

from collections.abc import Mapping
from typing import Any

from loong_jax.errors import ConfigError

Json = dict[str, Any]


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


def json_object(record: Mapping[str, Any], key: str) -> Json:
    """The object under `key`, empty where there is none."""
    value = record.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(
            f"config.json has {key}={value!r}, which is no JSON object. Correct it or remove it."
        )
    return value or {}
