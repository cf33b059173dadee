"""Features of behaviour: how long a response is, how often it reflects, how it goes about it.

Densities are per 1,000 words, so that long and short responses compare. Marks are English; a
response in another language has length only.
"""

import dataclasses
import re
from collections.abc import Mapping

from loong_jax.data.curation.stages import Record, Said, text_of

_WORD = re.compile(r"\w+")
MARKS: Mapping[str, re.Pattern[str]] = {
    "reflection": re.compile(
        r"\b(?:wait|hmm|hold on"
        r"|let me (?:re-?check|re-?think|reconsider|re-?examine|double[- ]check)"
        r"|on second thought|actually|that(?:'s| is) (?:not right|wrong|incorrect)|i made (?:a|an) "
        r"(?:mistake|error)|let me go back|is (?:that|this) (?:right|correct)\?)",
        re.IGNORECASE,
    ),
    "verification": re.compile(
        r"\b(?:let(?:'s| me| us) (?:check|verify|test|confirm|substitute)|to (?:verify|check)|"
        r"plugging (?:in|back)|sanity check|as a check|we can verify)",
        re.IGNORECASE,
    ),
    "exploration": re.compile(
        r"\b(?:alternatively|another (?:way|approach|idea|method)|what if|suppose instead|maybe we "
        r"(?:can|could)|let(?:'s| me) try|instead,)",
        re.IGNORECASE,
    ),
    "planning": re.compile(
        r"\b(?:first,|step \d+|the plan is|let(?:'s| me) (?:start|begin) (?:by|with)|we need to|"
        r"our goal is)",
        re.IGNORECASE,
    ),
}


def of_text(text: str) -> dict[str, float]:
    """`words`, and per 1,000 of them each kind of mark; 0 of all for an empty text."""
    num_words = len(_WORD.findall(text))
    densities = {
        name: round(1000 * len(mark.findall(text)) / num_words, 3) if num_words else 0.0
        for name, mark in MARKS.items()
    }
    return {"words": num_words, **densities}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """Notes the features of a text as `features`, and drops nothing."""

    name: str = "features"
    key: str = "response"

    def reason(self, record: Record) -> Said:
        return {"features": of_text(text_of(record, self.key))}
