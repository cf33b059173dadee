"""Sentences that say there is nothing: "there are no such integers", "the limit does not exist"."""

import re

_KIND = (  # what may stand before what there is none of; "no rational roots" may leave others
    r"(?:such|real|integer|integral|positive|natural|whole|prime|valid|possible|common|finite|"
    r"feasible|admissible|real-valued|two-sided|other such|suitable|values? of)"
)
_THING = (
    r"(?:solutions?|roots?|zeros?|zeroes|limits?|integers?|numbers?|values?|primes?|pairs?|triples?|"
    r"tuples?|triangles?|functions?|polynomials?|points?|matrix|matrices|maximum|minimum|sequences?|"
    r"sets?|intersections?|inverse|[a-z])"
)
_WHERE = (
    r"(?: (?:at all|here|exists?|either|in (?:the )?(?:set of )?(?:reals?|integers|"
    r"positive integers|real numbers|natural numbers|r|z)|over the (?:reals|real numbers|integers)|"
    r"satisf(?:y|ies|ying) (?:the|this|these|both|all|it)(?: given)?(?: [a-z]{3,12}){0,2}|"
    r"with (?:this|that|the required) property|"
    r"to (?:the|this) (?:given )?(?:equation|system|problem|inequality|congruence)|works?))*"
)
_NONE_OF = rf"no (?:{_KIND} )*{_THING}{_WHERE}|no such [a-z]{{2,15}}s?(?: [a-z]{{2,15}})?{_WHERE}"
_SUBJECT = r"(?:(?!no\b|not\b|other\b|that\b)[a-z][a-z-]*(?: |, ))"
_ABSENT = re.compile(
    rf"{_NONE_OF}|there (?:is|are|exists?|can be) (?:{_NONE_OF})|"
    rf"there (?:do|does) not exist (?:an?y? )?(?:such )?{_THING}{_WHERE}|"
    rf"{_SUBJECT}{{1,6}}(?:has|have|admits?|possess(?:es)?) (?:{_NONE_OF})|"
    rf"{_SUBJECT}{{1,6}}(?:(?:does|do) not|doesn t|doesnt|don t|fails? to) exist|"
    rf"(?:it |they )?(?:does not|doesn t|do not) exist|"
    rf"{_SUBJECT}{{0,3}}(?:solution set|set of solutions|set of (?:real )?roots) is (?:the )?empty"
    rf"(?: set)?|(?:there (?:is|are) )?none(?: exists?| at all)?|"
    rf"{_SUBJECT}{{0,3}}system(?: of equations)? is inconsistent|equation is unsolvable|"
    rf"{_SUBJECT}{{0,4}}is not solvable"
)
_PARTIAL = re.compile(  # one case has none, another may
    r"\b(?:cases?|branch|other|second|first|latter|former|except|but|unless|if|when|besides|apart|"
    r"only|more|further|additional|than|or)\b"
)
_CONCLUDES = re.compile(
    r"[:;]\s+(?=(?:it|they|there|no)\b)|(?:^|[,;:.\u2014]\s*|\s)"
    r"(?:so|thus|hence|therefore|whence|which means|meaning|consequently|"
    r"we conclude|it follows|we see|this shows|this means|and)\b(?:\s+that\b)?[\s,]*",
    re.IGNORECASE,
)
_HINTS = ("no", "empty", "exist", "inconsistent", "unsolvable", "solvable")
MAX_CHARS = 200


def is_said(words: str) -> bool:
    """Whether a text, as a normal form (see `phrases.normal`), says that there is nothing."""
    if len(words) > MAX_CHARS or not any(hint in words for hint in _HINTS):
        return False
    words = words.removeprefix("that ").removeprefix("there ").strip()
    if any(character.isdigit() for character in words):
        return False
    if _PARTIAL.search(words):
        return False
    return any(_ABSENT.fullmatch(form) is not None for form in (words, f"there {words}"))


def conclusion(sentence: str) -> str:
    """What a sentence concludes: "it has no roots" of "The sum is 1 > 0, so it has no roots"."""
    return _CONCLUDES.split(sentence[-2 * MAX_CHARS :])[-1].strip()
