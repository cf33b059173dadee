"""Errors that a caller can answer. Each message names the value, the rule and the remedy."""


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
