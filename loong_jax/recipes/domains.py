"""The source of one domain's problems."""

import dataclasses
import math

from loong_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainProblems:
    """The source of one domain's problems."""

    environment: str  # of loong_jax.environments.get_environment, or package:DIRECTORY
    levels: tuple[int, ...] = (1, 2, 3, 4, 5)
    level_shares: tuple[float, ...] = ()  # () for equal shares
    demonstration_share: float = 1.0  # of the cold start's pairs, on any common scale

    def __post_init__(self):
        if self.level_shares and len(self.level_shares) != len(self.levels):
            raise ConfigError(
                f"level_shares={self.level_shares} must have one share for each of levels="
                f"{self.levels}, or be ()."
            )
        if not all(0 < share < math.inf for share in self.level_shares):
            raise ConfigError(
                f"level_shares={self.level_shares} must be positive and finite. Leave out the "
                "levels that are not to be posed."
            )
        if not 0 <= self.demonstration_share < math.inf:
            raise ConfigError(
                f"demonstration_share={self.demonstration_share} must be finite and at least 0. "
                "Use 1 where all domains have the same."
            )

    @property
    def level_weights(self) -> dict[int, float]:
        shares = self.level_shares or (1.0,) * len(self.levels)
        return dict(zip(self.levels, shares, strict=True))
