"""Errors that a caller can answer. Each message names the value, the rule and the remedy."""

import dataclasses
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any


class LoongError(Exception):
    """Base of every error that loong_jax raises on purpose."""


class ConfigError(LoongError, ValueError):
    """A setting is outside its rule; raised before any work starts."""


class CheckpointError(LoongError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class DiskFullError(LoongError):
    """There is no room for a file. What was written before is whole."""


class VerifierError(LoongError):
    """A verifier cannot be built or reached. A single answer never raises: it is `ungradable`."""


class LaunchError(LoongError):
    """A machine, or a command that was to reach it, failed."""


def refuse_below(settings: object, least: float, *names: str) -> None:
    """ConfigError for the first of these settings that is below `least`; None, where it may stand,
    is not.
    """
    for name, value in _given(settings, names):
        if value is None or not value >= least:
            raise ConfigError(f"{name}={value} must be at least {least}. Raise it.")


def refuse_no_share(settings: object, *names: str) -> None:
    """ConfigError for the first of these settings that is not above 0 and at most 1."""
    refuse_outside(settings, "(0, 1]", *names)


def refuse_outside(settings: object, interval: str, *names: str, why: str = "") -> None:
    """ConfigError for the first of these settings outside `[0, inf)`, say; None, where it may
    stand, is not. `why` says what the bounds mean.
    """
    low, high = map(float, interval[1:-1].split(","))

    def is_inside(value: Any) -> bool:
        over = low <= value if interval[0] == "[" else low < value
        return over and (value <= high if interval[-1] == "]" else value < high)

    for name, value in _given(settings, names):
        if value is None or not is_inside(value):
            reason = f": {why}" if why else ""
            raise ConfigError(f"{name}={value} is not in {interval}{reason}. Choose one there.")


def _given(settings: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Settings by name, without None where the type of its field has it."""
    types = {field.name: str(field.type) for field in dataclasses.fields(settings)}
    for name in names:
        value = getattr(settings, name)
        if value is not None or "None" not in types[name]:
            yield name, value


def line_in(file: str, error: BaseException) -> str:
    """`, line N` of the last line of `file` that an error came through, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f", line {lines[-1]}" if lines else ""


def shown(value: Any, limit: int = 80) -> str:
    """A value in a message: one line, cut with an ellipsis, without addresses of objects."""
    text = " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def form_of(value: Any) -> str:
    """A value in a message by its kind: an array by dtype and shape, all else by its type."""
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    return f"{value.dtype}{list(value.shape)}" if is_array else f"a {type(value).__name__}"


def raised(error: BaseException, file: str) -> str:
    """The last line of `file` that an error came through, if any, its type and its text.

    Of a text of several lines the first: JAX goes on with what it was tracing.
    """
    text = str(error).strip().partition("\n")[0].rstrip(".")
    at = line_in(file, error)
    return f"{at and at + ','} raised {type(error).__name__}" + (f": {text}" if text else "")
