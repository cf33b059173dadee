"""One idea on its way to a package, or to the place where it ended."""

import dataclasses
from typing import Any

STAGES = ("idea", "module", "gates", "novelty", "judge", "calibration")
KEPT = "kept"


@dataclasses.dataclass(kw_only=True)
class Item:
    """A place for one idea: `ideas_per_keyword` of them for each keyword, filled or not.

    It ends in exactly one place: `kept`, or a stage of `STAGES` with a reason.
    """

    uid: str  # "003-02": keyword 3, idea 2
    keyword: str
    title: str = ""
    description: str = ""
    source: str = ""
    levels: tuple[int, ...] = ()
    guess_share: float = 0.0
    prompt_chars: tuple[int, ...] = ()
    form: tuple[str, str] = ("", "")  # digests of its normalised verifier and template
    complaint: str = ""  # what the revision is told
    was_revised: bool = False
    first_refusal: str = ""  # stage and reason that the revision answered
    calibration: dict[str, Any] = dataclasses.field(default_factory=dict)
    end: str = ""  # "kept" or a stage
    reason: str = ""
    detail: str = ""
    calls: list[str] = dataclasses.field(default_factory=list)  # keys of transcripts, in order

    @property
    def is_open(self) -> bool:
        return not self.end

    def stop(self, stage: str, reason: str, detail: str = "") -> None:
        assert self.is_open, f"item {self.uid} ended before, at {self.end}"
        assert stage == KEPT or stage in STAGES, stage
        self.end, self.reason, self.detail = stage, reason, detail[:300]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
