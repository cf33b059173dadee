"""Answers that are words, compared as normal forms; yes and no."""

import functools
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
    r"\b(?:not|no|never|or|wrong|incorrect|except|eliminate\w*|exclude\w*|unless|either|rules?|ruled)\b"
    r"|n't\b",
    re.IGNORECASE,
)
_TRUTH = re.compile(
    r"(?:(?:so|thus|hence|therefore) )?(?:(?:(?:the|this|that) )?(?:given )?(?:statement|claim|"
    r"assertion|proposition|conjecture|sentence)|it|this|that) is (?:always )?(true|false)"
)
_JUDGED = re.compile(  # 这个命题是错误的
    r"(?:说法|命题|结论|判断|论断|叙述|推理|题目|该|这|它)[^,.;不]{0,8}(?<!是否)(?<!不是)"
    r"(不正确|不成立|不对|错误|正确|成立|错|对)的?\W*(?:\([^()]*\)\W*)?\Z"
)
_CLAUSE = re.compile(r"[,:;.]\s|[,:;.]\Z")
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


@functools.lru_cache(maxsize=512)  # one verdict asks for the same texts again and again
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
    said = normal(text.replace(";", ", ").replace("\u2014", ", "))
    clauses = [" ".join(part.split()) for part in _CLAUSE.split(said) if part.strip()]
    stated = {_YES[match[1]] for part in clauses if (match := _TRUTH.fullmatch(part))}
    if len(stated) == 1:
        return stated.pop()
    if not said.isascii() and (judged := _JUDGED.search(said)) is not None:
        return _YES[judged[1]]
    words = clauses[0].split() if clauses else []
    if not words or words[0] not in _YES or tuple(words[:2]) in _GREETINGS:
        return None
    first = _YES[words[0]]
    later = [part.split()[0] for part in clauses[1:]]
    if any(_YES.get(word, first) != first for word in (*words[1:], *later)) or "or" in words[1:3]:
        return None
    return first


def parts(text: str) -> frozenset[str]:
    """The items of a list in words, in any order."""
    return frozenset(re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", text))


_MULTIPLES = re.compile(r"(?:divisible by|multiples? of) (\d{1,6})\Z")


def multiples(text: str) -> str | None:
    """6 of "all n divisible by 6" and of "n must be a multiple of 6"."""
    said = normal(text)
    found = None if DENIAL.search(text) else _MULTIPLES.search(said)
    return None if found is None else found[1]


def concludes(sentence: str, wanted: str) -> bool:
    """Whether a sentence, as a normal form, ends on "is <wanted>"."""
    if not wanted or not sentence.endswith(wanted):
        return False
    before = sentence[: len(sentence) - len(wanted)]
    if wanted.split()[0] in _SAYS and not DENIAL.search(before):
        subject = before.rpartition(",")[2].split()  # "the limit" does not exist
        return 0 < len(subject) <= 4 and all(word.isalpha() for word in subject)
    if re.search(r"\b(?:(?:falls|fell) on(?: a)?|(?:lies|is|located|ends) in(?: the)?) \Z", before):
        return not DENIAL.search(before)
    is_said = re.search(
        r"(?:\b(?:is|are|be|been|was)|:|=)\s+(?:(?:a|an|the)\s+)?\Z|[是为在于]\s*\Z", before
    )
    return is_said is not None and SUPPOSED.search(before) is None


SUPPOSED = re.compile(
    r"\b(?:if|unless|whether|would|could|might|may|claims?|claimed|says?|said|thinks?|pretends?|"
    r"suppose|assum\w+|either|neither|nor|or|but|except|fails?|tempting|absolutely|conditionally|only)\b|n't\b|"
    r"[不非没错误]|排除"
)
_PREDICATE = re.compile(
    r"\b(?:is|are|was|were|be|been|becomes?|remains?|stays?|faces?|facing|points?|pointing|"
    r"heads|heading|describes?|represents?|shows?|falls?|lands?|comes|place|walking|colou?r)\b"
)
_ROWS = {
    form: {other: group.split("|")[0] for group in row.split() for other in group.split("|")}
    for row in names.TABLES["rows"].split(";")
    for form in row.replace("|", " ").split()
}
_NEIGHBOUR = re.compile(
    r"\b(?:after|before|than|from|like|not|no|of|until|since|either|just)\s+"
    r"(?:(?:an?|the|this|next|last)\s+)?\Z"
)


def is_told(wanted: str, clause: str) -> bool:
    """Whether a clause says this one alone of words that shut each other out: "he faces north"."""
    clause = re.sub(r"\A(?:If|When) [^,]*, (?!.*\b(?:would|could)\b)", "", clause)
    said = normal("then " + CONCLUDES_ONLY.split(clause)[-1]).removeprefix("then ")
    rest = said if wanted.isascii() else said.removesuffix(wanted)
    if DENIAL.search(rest) or SUPPOSED.search(rest):
        return False
    if not wanted.isascii() or said == f"is {wanted}":
        return said.endswith(wanted)
    row = _ROWS.get(wanted, {})
    told: set[str] = set()
    for number, part in enumerate(said.split(" and ")):
        verbs = list(_PREDICATE.finditer(part))
        start = verbs[-1].end() if verbs else 0
        for word in re.finditer(r"[a-z]+(?:-[a-z]+)?", part[start:]):
            is_verb = word[0].endswith("es") and word.start() > 0  # it converges
            if word[0] in row and (verbs or is_verb or number):
                told.add("" if _NEIGHBOUR.search(part[: start + word.start()]) else row[word[0]])
    return told == {row.get(wanted)}


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
    r"we conclude|it follows|we see|this shows|this means|and)\b(?:\s+that\b)?[\s,]*|"
    r"[,;.\s]*(?:所以|因此|于是|从而|综上|故)[\s,]*",
    re.IGNORECASE,
)
CONCLUDES_ONLY = re.compile(
    r"(?:^|[,;:.\u2014]\s*|\s)(?:so|thus|hence|therefore|consequently)\b(?:\s+that\b)?[\s,]*|"
    r"[,;.\s]*(?:所以|因此|于是|从而|综上|故)[\s,]*",
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
    for group in names.TABLES["synonyms"].split(";")
    for word in group.split("|")
}
_IT_IS = re.compile(r"\b(?:is|was|be|been) \**([A-Z][a-z]{1,14})\**(?: (?:who|that)\b.*)?\Z")
_NAMED = re.compile(  # of Emma: "has the largest share", "is the tallest of all", "won the race"
    r"(?:(?:is|was|must be|has to be|must have been) the [a-z]+|"
    r"(?:has|had|gets|got|have|owns|scored|received|receives|needs|ran|sold|bought|ate)"
    r" the (?:most|least|fewest|[a-z]{2,9}est|best|worst)|won|wins|"
    r"(?:is|was) (?:telling|lying|guilty)|lied|lies|"
    r"(?:finished|came|comes) (?:in )?first)"
    r"(?: (?!not\b|but\b|except|after\b|than\b|apart\b|no\b|if\b|unless\b|or\b|nor\b)[a-z]+){0,6}"
)
_NAME = re.compile(r"[A-Z][a-z]{1,14}")
_OTHER_NAME = re.compile(
    r"(?<!\A)\b[A-Z][a-z]+|"
    r"\A(?!It|He|She|They|Th)[A-Z][a-z]+(?=(?:'s)?\s(?:is|was|has|had|did|won|wins|came|finished|cannot|must|lied)\b)"
)
_OPENS = re.compile(
    r"\A(?:(?:so|thus|hence|therefore|consequently|finally|then|"
    r"(?:it follows|we conclude|this means|that means)(?: that)?),?\s+)+",
    re.IGNORECASE,
)


def synonyms_of(wanted: str) -> frozenset[str]:
    """Normal forms that say the same as one, itself among them."""
    return _SYNONYMS.get(wanted, frozenset((wanted,)))


def is_said_of(name: str, sentence: str) -> bool:
    """Whether a sentence says of a name, and of no other, that it stands out: "Emma won."."""
    sentence = _OPENS.sub("", sentence.strip(" .!*"))
    others = set(_OTHER_NAME.findall(sentence)) - {name}
    if _NAME.fullmatch(name) is None or others or DENIAL.search(sentence):
        return False
    for part in re.split(r",\s+", sentence):
        subject, _, rest = part.partition(" ")
        if subject.strip("*") == name and _NAMED.fullmatch(rest) is not None:
            return True
    found = _IT_IS.search(sentence)
    return found is not None and found[1] == name and not SUPPOSED.search(sentence)
