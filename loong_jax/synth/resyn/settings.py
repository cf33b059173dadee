"""What a run of ReSyn is asked to do."""

import dataclasses

from loong_jax.environments.problem import Domain
from loong_jax.errors import ConfigError
from loong_jax.synth.resyn.calibration import CalibrationRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResynSettings:
    """Everything that changes what comes out, beside the keywords and the author."""

    ideas_per_keyword: int = 8
    seed: int = 0  # of the requests: another one asks the same questions anew
    calibration: CalibrationRule = CalibrationRule()
    min_graded_share: float = 0.8  # of the attempts of each level
    domain: Domain = "logic"  # of the packages
    licence: str = "Apache-2.0"  # of the packages
    keeps_overlapping: bool = False  # keywords that name an evaluation set's task

    def __post_init__(self):
        if self.ideas_per_keyword < 1:
            raise ConfigError(f"ideas_per_keyword={self.ideas_per_keyword} is below 1. Raise it.")
        if not 0 < self.min_graded_share <= 1:
            raise ConfigError(f"min_graded_share={self.min_graded_share} is not in (0, 1].")
        if not self.domain.strip():
            raise ConfigError(f"domain={self.domain!r} is no word. Give one.")
