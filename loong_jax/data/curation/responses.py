"""Rules on what was answered: repetition, truncation, mixed languages, form. And its features.

LongCat-Flash-Thinking A.1 removes synthetic answers with repetitive generation, truncation,
language mixing or another form than the desired one. A record without a response passes.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping

from loong_jax.data.curation.stages import Record, Said, prompt_of, text_of
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share
from loong_jax.problems import response

_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repetition:
    """Drops responses that go round in circles.

    Reasons: `loop` (the end is the same words `min_rounds` times), `sentences` (a sentence or line
    of at least four words, whatever its numbers, occurs more than `max_same_sentences` times),
    `n-grams` (too great a share of `ngram`-word pieces occurs before; sums and tables repeat
    shorter ones).
    """

    name: str = "repetition"
    key: str = "response"
    ngram: int = 8
    max_share: float = 0.4  # of n-grams that occurred before
    min_rounds: int = 4
    max_period: int = 120  # words of a round
    max_same_sentences: int = 5

    def __post_init__(self):
        refuse_no_share(self, "max_share")
        refuse_below(self, 2, "ngram", "min_rounds")

    def reason(self, record: Record) -> str | None:
        text = text_of(record, self.key)
        words = _WORDS.findall(text)
        if self._is_loop(words) or _ONE_SIGN.search(text):
            return "loop"
        masked = re.sub(r"\d+", "0", text)
        split = re.split(r"[.!?\n]+\s*", masked)
        said = Counter(one for one in split if len(_LONG_WORD.findall(one)) >= 4)
        if said and max(said.values()) > self.max_same_sentences:
            return "sentences"
        num_ngrams = len(words) - self.ngram + 1
        if num_ngrams < 2 * self.ngram:
            return None
        distinct = len({tuple(words[i : i + self.ngram]) for i in range(num_ngrams)})
        return "n-grams" if 1 - distinct / num_ngrams > self.max_share else None

    def _is_loop(self, words: list[str]) -> bool:
        """A last round may be unfinished; a loop has at least 12 words in all."""
        rounds = self.min_rounds
        for period in range(1, min(self.max_period, len(words) // rounds) + 1):
            length = max(rounds * period, 12)
            if length > len(words) or words[-1] != words[-1 - period]:
                continue
            end = words[-length:]
            if end[period:] == end[:-period] and any(word.isalnum() for word in end[:period]):
                return True
        return False


_ONE_SIGN = re.compile(r"(\S)\1{79}")


_LONG_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truncation:
    """Drops responses that stop before their end.

    Reasons: `length` (the engine says so: `finish_reason`), `open tag`, `open fence`, `open
    formula`, `open box`, `mid-sentence` (only of responses of at least `min_words`: short answers
    end as they like).
    """

    name: str = "truncation"
    key: str = "response"
    min_words: int = 20

    def reason(self, record: Record) -> str | None:
        text = text_of(record, self.key).rstrip()
        if record.get("finish_reason") in ("length", "max_tokens"):
            return "length"
        if not text:
            return None
        for tag in ("think", "longcat_think", "longcat_answer", "longcat_tool_call", "answer"):
            if text.count(f"<{tag}>") > text.count(f"</{tag}>"):
                return "open tag"
        if len(re.findall(r"^[ \t]*(?:```|~~~)", text, re.MULTILINE)) % 2:
            return "open fence"
        if text.count("$$") % 2 or text.count(r"\[") > text.count(r"\]"):
            return "open formula"
        if _is_open_box(text):
            return "open box"
        text = re.sub(r"(?:</\w+>)+$", "", response.without_end(text).rstrip()).rstrip()
        if text.count(" ") < self.min_words or _ENDS_WELL.search(text):
            return None
        return "mid-sentence"


# A stop or a closing bracket, a fence, a formula, a number, or a label and its value on a line.
_ENDS_WELL = re.compile(
    r"[.!?\u3002\uff01\uff1f\u061f\u0964\u2026)\]}\"'\u201d`$*>|\u25a0\u25a1\u220e]$|\d[%\u00b0]?$"
    r"|(?:^|\n)[^\n]{0,60}[:=][ \t]*[^\n]{1,60}$"
    r"|(?:^|\n)[ \t]*(?:[-*\u2022]|\d+[.)])[ \t][^\n]{1,80}$"
    r"|\b[Qq]\.?[Ee]\.?[Dd]\.?$|[\U0001f300-\U0001faff]$|(?:^|\n)[^\n]{0,40}\banswer\b[^\n]{0,40}$"
)


def _is_open_box(text: str) -> bool:
    start = text.rfind(r"\boxed{")
    if start < 0:
        return False
    depth = 0
    for character in text[start + len(r"\boxed") :]:
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return False
    return True


_SCRIPTS = {
    "CJK": re.compile(r"[\u3400-\u9fff\uf900-\ufaff]"),
    "KANA": re.compile(r"[\u3040-\u30ff]"),
    "HANGUL": re.compile(r"[\uac00-\ud7af\u1100-\u11ff]"),
    "CYRILLIC": re.compile(r"[\u0400-\u052f]"),
    "ARABIC": re.compile(r"[\u0600-\u06ff\u0750-\u077f]"),
    "HEBREW": re.compile(r"[\u0590-\u05ff]"),
    "DEVANAGARI": re.compile(r"[\u0900-\u097f]"),
    "THAI": re.compile(r"[\u0e00-\u0e7f]"),
    "LATIN": re.compile(r"[A-Za-z\u00c0-\u024f]"),
}
# Words that English does not have; none is also a common word of another language of the three.
_FUNCTION_WORDS = {
    "French": frozenset(re.findall(r"\w+", "donc nous cette avec pour dans est une les celle mais "
                                   "cela alors ainsi parce puisque bien sont peut que")),
    "German": frozenset(re.findall(r"\w+", "und der das nicht wir also ist eine mit auf den dem "
                                   "wenn damit weil sind kann werden daher aber")),
    "Spanish": frozenset(re.findall(r"\w+", "entonces pero para los las una con como por ser este "
                                    "esta porque cuando donde luego tiene puede muy")),
}  # fmt: skip
_NOT_PROSE = re.compile(
    r"```.*?```|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)|`[^`\n]*`|\\[a-z]+", re.DOTALL
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageMixing:
    """Drops responses with letters of a script that neither prompt nor response is written in.

    Latin letters are expected in every response, since formulas and names use them, and Greek ones
    are symbols. Code and formulas do not count. Of languages with Latin letters only French, German
    and Spanish are told from the others, by at least `min_words` of their function words. Reasons:
    `foreign script`, `foreign words`.
    """

    name: str = "language_mixing"
    key: str = "response"
    min_letters: int = 2
    max_share: float = 0.0  # of foreign letters among all
    min_words: int = 4

    def reason(self, record: Record) -> str | None:
        text = _NOT_PROSE.sub(" ", text_of(record, self.key))
        if language := self._foreign_words(text, prompt_of(record)):
            return f"foreign words: {language}"
        if text.isascii():
            return None
        counts = {script: len(letters.findall(text)) for script, letters in _SCRIPTS.items()}
        prompt = prompt_of(record)
        expected = {script for script, letters in _SCRIPTS.items() if letters.search(prompt)}
        expected.add("LATIN")
        if not prompt:
            expected.add(max(counts, key=lambda script: counts[script]))
        if "KANA" in expected:
            expected.add("CJK")
        foreign = {s: n for s, n in counts.items() if s not in expected and n}
        total = sum(foreign.values())
        if total < self.min_letters or total <= self.max_share * sum(counts.values()):
            return None
        return f"foreign script: {max(foreign, key=lambda script: foreign[script])}"

    def _foreign_words(self, text: str, prompt: str) -> str | None:
        words, asked = set(_WORDS.findall(text.lower())), set(_WORDS.findall(prompt.lower()))
        for language, own in _FUNCTION_WORDS.items():
            if len(words & own) >= self.min_words and len(asked & own) < 2:
                return language
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """Drops responses of another form than the one that is trained.

    `form` is a name of problems/response.py; where it has thinking, a response must have it.
    `longcat` takes answers with and without their tags.
    """

    name: str = "form"
    key: str = "response"
    form: str = "longcat"

    def __post_init__(self):
        if self.form not in response.FORMS:
            raise ConfigError(
                f"form={self.form!r} is unknown. Choose one of {sorted(response.FORMS)}."
            )

    def reason(self, record: Record) -> str | None:
        text = text_of(record, self.key)
        names = ("longcat", "tagged") if self.form == "longcat" else (self.form,)
        forms = (dataclasses.replace(response.FORMS[n], needs_thinking=True) for n in names)
        is_formed = any(response.read(text, form).is_well_formed for form in forms)
        return None if not text or is_formed else f"not {self.form}"


# ---- features of behaviour

_WORD = re.compile(r"\w+")
# English; a response in another language has length only.
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
