"""Answers that are words, compared as normal forms; yes and no."""

import functools
import re
import unicodedata

from loong_jax.verifiers.maths import languages, names

COMMANDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|boxed)\b\s*")
SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_PUNCTUATION = re.compile(r"[^\w\s%+\-/().,:]|_", re.UNICODE)
_SAID = names.patterns("phrases")
_ENDS = " \t\r\n.,;:!?\"'"
DENIAL = _SAID.DENIAL
CONDITION = _SAID.CONDITION
_GOES_BACK = re.compile(r"(?i)\b(?:but|however|wait|unless|if|yes|no|actually)\b")
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
    text = text[: 4 * MAX_CHARS]
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if "\\" in text or "~" in text:
        text = COMMANDS.sub("", SPACES.sub(" ", text))
    text = text.replace("{", " ").replace("}", " ").replace("$", " ")
    text = text.replace("\\(", " ").replace("\\)", " ").replace("**", " ").replace("\\", " ")
    text = text.replace("\u2212", "-").casefold().replace("'s", "s")
    text = _PUNCTUATION.sub(" ", text)
    text = " ".join(text.split()).strip(_ENDS)
    text = _SAID.ARTICLES.sub("", text)
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1].strip(_ENDS)
    return text


def bare(text: str) -> str:
    """The text without commands and signs around it, in its own case."""
    return COMMANDS.sub("", text).strip("{}$*. ")


def is_nothing(text: str) -> bool:
    words = normal(text)
    return (
        words in names.NOTHING
        or is_said(words)
        or (
            (not words.isascii() or "solu" in words)
            and languages.NOTHING.fullmatch(words) is not None
        )
    )


def is_everything(text: str) -> bool:
    return text in names.EVERYTHING or normal(text) in names.EVERYTHING


_OPENS_CLAUSE = re.compile(r"\A(?:so|thus|hence|therefore) (?=\S)")


def yes_or_no(text: str) -> str | None:
    """ "yes" or "no" where the text says so first and does not go on to doubt it."""
    said = normal(text.replace(";", ", ").replace("\u2014", ", "))
    clauses = [" ".join(part.split()) for part in _CLAUSE.split(said) if part.strip()]
    stated = {_YES[match[1]] for part in clauses if (match := _SAID.TRUTH.fullmatch(part))}
    if len(stated) == 1:
        return stated.pop()
    if not said.isascii() and (judged := _SAID.JUDGED.search(said)) is not None:
        return _YES[judged[1]]
    words = clauses[0].split() if clauses else []
    if not words or words[0] not in _YES or tuple(words[:2]) in _GREETINGS:
        return None
    if _SAID.LIMITED.search(said):
        return None
    first = _YES[words[0]]
    later = [_OPENS_CLAUSE.sub("", part).split()[0] for part in clauses[1:]]
    if any(_YES.get(word, first) != first for word in (*words[1:], *later)) or "or" in words[1:3]:
        return None
    return first


def opened(paragraph: str) -> str | None:
    """ "yes" of "So **yes**, the product is odd.", where nothing after it doubts that."""
    said = _SAID.OPENS_WITH.match(paragraph)
    return None if said is None or _GOES_BACK.search(paragraph, said.end()) else said[1].lower()


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
    if not wanted.isascii() and (
        had := re.search(rf"(?:有|打了?){re.escape(wanted)}.{{0,4}}\Z", sentence)
    ):
        return SUPPOSED.search(sentence[: had.start()]) is None
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


SUPPOSED = _SAID.SUPPOSED
_ROWS = {
    form: {other: group.split("|")[0] for group in row.split() for other in group.split("|")}
    for row in names.TABLES["rows"].split(";")
    for form in row.replace("|", " ").split()
}


def is_told(wanted: str, clause: str) -> bool:
    """Whether a clause says this one alone of words that shut each other out: "he faces north"."""
    clause = re.sub(r"\A(?:If|When) [^,]*, (?!.*\b(?:would|could)\b)", "", clause)
    said = normal("then " + CONCLUDES_ONLY.split(clause)[-1]).removeprefix("then ")
    rest = said if wanted.isascii() else said.replace(wanted, "")
    if said.removesuffix(" years old") == wanted:
        return True
    if DENIAL.search(rest) or SUPPOSED.search(rest):
        return False
    if not wanted.isascii() or said == f"is {wanted}":
        return said.endswith(wanted) or concludes(said, wanted)
    if wanted == "infinitely many" and re.search(
        r"(?:\A|\b(?:has|have|are|is) )infinitely many\b", said
    ):
        return True
    row = _ROWS.get(wanted, {})
    told: set[str] = set()
    for number, part in enumerate(said.split(" and ")):
        verbs = list(_SAID.PREDICATE.finditer(part))
        start = verbs[-1].end() if verbs else 0
        for word in re.finditer(r"[a-z]+(?:-[a-z]+)?", part[start:]):
            is_verb = word[0].endswith("es") and word.start() > 0  # it converges
            if word[0] in row and (verbs or is_verb or number):
                told.add(
                    "" if _SAID.NEIGHBOUR.search(part[: start + word.start()]) else row[word[0]]
                )
    return told == {row.get(wanted)}


CONCLUDES_ONLY = _SAID.CONCLUDES_ONLY
_HINTS = ("no", "empty", "exist", "inconsistent", "unsolvable", "solvable")
MAX_SAID = 200


def is_said(words: str) -> bool:
    """Whether a text, as a normal form (see `normal`), says that there is nothing."""
    if len(words) > MAX_SAID or not any(hint in words for hint in _HINTS):
        return False
    words = words.removeprefix("that ").removeprefix("there ").strip()
    if any(character.isdigit() for character in words):
        return False
    if _SAID.PARTIAL.search(words):
        return False
    return any(_SAID.ABSENT.fullmatch(form) is not None for form in (words, f"there {words}"))


def conclusion(sentence: str) -> str:
    """What a sentence concludes: "it has no roots" of "The sum is 1 > 0, so it has no roots"."""
    return _SAID.CONCLUDES.split(sentence[-2 * MAX_SAID :])[-1].strip()


SYNONYMS = {  # normal forms that say the same as one, itself among them
    normal(word): frozenset(map(normal, group.split("|")))
    for group in names.TABLES["synonyms"].split(";")
    for word in group.split("|")
}
_IT_IS = re.compile(r"\b(?:is|was|be|been) \**([A-Z][a-z]{1,14})\**(?: (?:who|that)\b.*)?\Z")
_NAME = re.compile(r"[A-Z][a-z]{1,14}")


def is_said_of(name: str, sentence: str) -> bool:
    """Whether a sentence says of a name, and of no other, that it stands out: "Emma won."."""
    sentence = CONCLUDES_ONLY.split(sentence.strip(" .!*"))[-1]
    others = set(_SAID.OTHER_NAME.findall(sentence)) - {name}
    if _NAME.fullmatch(name) is None or others or DENIAL.search(sentence):
        return False
    for part in re.split(r",\s+", sentence):
        part = _SAID.OPENS.sub("", part)
        subject, _, rest = part.partition(" ")
        if subject.strip("*") == name and _SAID.NAMED.fullmatch(rest) is not None:
            return True
    found = _IT_IS.search(sentence)
    return found is not None and found[1] == name and not SUPPOSED.search(sentence)
