"""Answers that are words, compared as normal forms; yes and no."""

import re
import unicodedata

from loong_jax.verifiers.maths import languages, names

COMMANDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|boxed)\b\s*")
SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_PUNCTUATION = re.compile(r"[^\w\s%+\-/().,:]|_", re.UNICODE)
_ARTICLES = re.compile(
    r"^(?:(?:the|a|an|it|it's|its|is|answer|final|are|therefore|so|thus|hence)\s+|"
    r"(?:therefore|so|thus|hence),\s+)+"
)
_ENDS = " \t\r\n.,;:!?\"'"
DENIAL = re.compile(
    r"\b(?:not|no|never|or|wrong|incorrect|except|eliminate\w*|exclude\w*|unless|either|rule)\b"
    r"|n't\b",
    re.IGNORECASE,
)
_TRUTH = re.compile(
    r"(?:(?:so|thus|hence|therefore) )?(?:(?:the|this|that) )?(?:given )?"
    r"(?:statement|claim|assertion|proposition|conjecture|sentence) is (?:always )?(true|false)"
)
_SAYS = frozenset(("does", "do", "diverges", "converges", "is", "has", "cannot", "exists",
                   "increases", "decreases"))  # fmt: skip
_YES = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no",
        "right": "yes"} | languages.TRUTHS  # fmt: skip
_GREETINGS = frozenset(  # "no problem, I'd be glad to help" denies nothing
    tuple(words.split())
    for words in ("no problem", "no worries", "no idea", "no clue", "no doubt", "no matter",
                  "no need", "no answer", "correct me", "right away", "right now")
)  # fmt: skip
MAX_CHARS = 300


def normal(text: str) -> str:
    """Words in lower case with single spaces, without commands, articles and end punctuation."""
    text = unicodedata.normalize("NFKC", text[: 4 * MAX_CHARS])
    text = SPACES.sub(" ", text)
    text = COMMANDS.sub("", text).replace("{", " ").replace("}", " ").replace("$", " ")
    text = text.replace("\\(", " ").replace("\\)", " ").replace("**", " ").replace("\\", " ")
    text = text.replace("\u2212", "-").casefold().replace("'s", "s")
    text = _PUNCTUATION.sub(" ", text)
    text = " ".join(text.split()).strip(_ENDS)
    text = _ARTICLES.sub("", text)
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1].strip(_ENDS)
    return text


def bare(text: str) -> str:
    """The text without commands and signs around it, in its own case."""
    return COMMANDS.sub("", text).strip("{}$*. ")


def is_nothing(text: str) -> bool:
    words = normal(text)
    return (
        words in names.NOTHING or is_said(words) or languages.NOTHING.fullmatch(words) is not None
    )


def is_everything(text: str) -> bool:
    return text in names.EVERYTHING or normal(text) in names.EVERYTHING


def yes_or_no(text: str) -> str | None:
    """ "yes" or "no" where the text says so first and does not go on to doubt it."""
    words = normal(text).replace(",", " ").replace(".", " ").split()
    if match := _TRUTH.fullmatch(" ".join(words)):
        return _YES[match[1]]
    if not words or words[0] not in _YES or tuple(words[:2]) in _GREETINGS:
        return None
    first = _YES[words[0]]
    if any(_YES.get(word, first) != first for word in words[1:]) or "or" in words[1:3]:
        return None
    return first


def parts(text: str) -> frozenset[str]:
    """The items of a list in words, in any order."""
    return frozenset(re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", text))


def concludes(sentence: str, wanted: str) -> bool:
    """Whether a sentence, as a normal form, ends on "is <wanted>"."""
    if not wanted or not sentence.endswith(wanted):
        return False
    before = sentence[: len(sentence) - len(wanted)]
    if wanted.split()[0] in _SAYS and not DENIAL.search(before):
        subject = before.rpartition(",")[2].split()  # "the limit" does not exist
        return 0 < len(subject) <= 4 and all(word.isalpha() for word in subject)
    if re.search(r"\b(?:falls|fell) on\s+(?:a\s+)?\Z", before):
        return not DENIAL.search(before)
    return re.search(r"(?:\b(?:is|are|be|was)|:|=)\s+(?:(?:a|an|the)\s+)?\Z", before) is not None


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
MAX_SAID = 200


def is_said(words: str) -> bool:
    """Whether a text, as a normal form (see `normal`), says that there is nothing."""
    if len(words) > MAX_SAID or not any(hint in words for hint in _HINTS):
        return False
    words = words.removeprefix("that ").removeprefix("there ").strip()
    if any(character.isdigit() for character in words):
        return False
    if _PARTIAL.search(words):
        return False
    return any(_ABSENT.fullmatch(form) is not None for form in (words, f"there {words}"))


def conclusion(sentence: str) -> str:
    """What a sentence concludes: "it has no roots" of "The sum is 1 > 0, so it has no roots"."""
    return _CONCLUDES.split(sentence[-2 * MAX_SAID :])[-1].strip()


_SYNONYMS = {
    normal(word): frozenset(map(normal, group.split("|")))
    for group in names.TABLES["synonyms"]
    for word in group.split("|")
}
_NAMED = re.compile(  # of Emma: "has the largest share", "is the tallest of all", "won the race"
    r"(?:(?:is|was|has|had|gets|got|have|owns|scored|received|receives|needs|ran|sold|bought|ate)"
    r" the (?:most|least|fewest|[a-z]{2,9}est|winner|best|worst)|won|wins)"
    r"(?: (?!not\b|but\b|except|after\b|than\b|apart\b|no\b|if\b|unless\b|or\b|nor\b)[a-z]+){0,6}"
)
_NAME = re.compile(r"[A-Z][a-z]{1,14}")


def synonyms_of(wanted: str) -> frozenset[str]:
    """Normal forms that say the same as one, itself among them."""
    return _SYNONYMS.get(wanted, frozenset((wanted,)))


def is_said_of(name: str, sentence: str) -> bool:
    """Whether a sentence says of a name, and of no other, that it stands out: "Emma won."."""
    subject, _, rest = sentence.strip(" .!*").partition(" ")
    return (
        _NAME.fullmatch(name) is not None
        and subject.strip("*") == name
        and _NAMED.fullmatch(rest) is not None
    )
