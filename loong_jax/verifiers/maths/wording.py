"""Answers in words, compared as normal forms; yes and no; letters of options, dates, times."""

import datetime
import functools
import re
import unicodedata

from loong_jax.verifiers.maths import languages, names

COMMANDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|boxed)\b\s*")
SPACES = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_PUNCTUATION = re.compile(r"[^\w\s%+\-/().,:]|_", re.UNICODE)
_SAID = names.patterns("phrases")
_ENDS = " \t\r\n.,;:!?\"'"
DENIAL, CONDITION, SUPPOSED = _SAID.DENIAL, _SAID.CONDITION, _SAID.SUPPOSED
CONCLUDES_ONLY = _SAID.CONCLUDES_ONLY
_CLAUSE = re.compile(r"[,:;.]\s|[,:;.]\Z")
_SAYS = frozenset(("does", "do", "diverges", "converges", "is", "has", "cannot", "exists",
                   "increases", "decreases"))  # fmt: skip
_YES = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no",
        "right": "yes"} | languages.TRUTHS  # fmt: skip
_GREETINGS = frozenset((  # "no problem, I'd be glad to help" denies nothing
    "no problem", "no worries", "no idea", "no clue", "no doubt", "no matter", "no need",
    "no answer", "correct me", "right away", "right now"))  # fmt: skip
MAX_CHARS = 300


@functools.lru_cache(maxsize=512)  # one verdict asks for the same texts again and again
def normal(text: str) -> str:
    """Words in lower case with single spaces, without commands, articles and end punctuation."""
    text = text[: 4 * MAX_CHARS]
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if "\\" in text or "~" in text:
        text = COMMANDS.sub("", SPACES.sub(" ", text))
    text = text.replace("\\(", " ").replace("\\)", " ").replace("\u2212", "-").casefold()
    text = _PUNCTUATION.sub(" ", text.replace("'s", "s"))
    text = _SAID.ARTICLES.sub("", " ".join(text.split()).strip(_ENDS))
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1].strip(_ENDS)
    return text


def bare(text: str) -> str:
    """The text without commands and signs around it, in its own case."""
    return COMMANDS.sub("", text).strip("{}$*. ")


def is_nothing(text: str) -> bool:
    words = normal(text)
    is_foreign = not words.isascii() or "solu" in words
    if words in names.NOTHING or (is_foreign and languages.NOTHING.fullmatch(words)):
        return True
    if len(words) > MAX_SAID or not any(hint in words for hint in _HINTS):
        return False
    words = words.removeprefix("that ").removeprefix("there ").strip()
    if any(character.isdigit() for character in words) or _SAID.PARTIAL.search(words):
        return False
    return any(_SAID.ABSENT.fullmatch(form) is not None for form in (words, f"there {words}"))


def is_everything(text: str) -> bool:
    return text in names.EVERYTHING or normal(text) in names.EVERYTHING


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
    if not words or words[0] not in _YES or " ".join(words[:2]) in _GREETINGS:
        return None
    first = _YES[words[0]]
    later = [_SAID.OPENS_CLAUSE.sub("", part).split()[0] for part in clauses[1:]]
    is_doubted = any(_YES.get(word, first) != first for word in (*words[1:], *later))
    return None if is_doubted or "or" in words[1:3] or _SAID.LIMITED.search(said) else first


def opened(paragraph: str) -> str | None:
    """ "yes" of "So **yes**, the product is odd.", where nothing after it doubts that."""
    said = _SAID.OPENS_WITH.match(paragraph)
    goes_back = said is not None and _SAID.GOES_BACK.search(paragraph, said.end())
    return None if said is None or goes_back else said[1].lower()


def parts(text: str) -> frozenset[str]:
    """The items of a list in words, in any order."""
    return frozenset(re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", text))


def multiples(text: str) -> str | None:
    """6 of "all n divisible by 6" and of "n must be a multiple of 6"."""
    found = None if DENIAL.search(text) else _SAID.MULTIPLES.search(normal(text))
    return None if found is None else found[1]


def concludes(sentence: str, wanted: str) -> bool:
    """True if a sentence, as a normal form, ends on "is <wanted>"."""
    had_it = f"(?:有|打了?){re.escape(wanted)}.{{0,4}}\\Z"
    if not wanted.isascii() and (had := re.search(had_it, sentence)) is not None:
        return SUPPOSED.search(sentence[: had.start()]) is None
    if not wanted or not sentence.endswith(wanted):
        return False
    before = sentence[: len(sentence) - len(wanted)]
    if wanted.split()[0] in _SAYS and not DENIAL.search(before):
        subject = before.rpartition(",")[2].split()  # "the limit" does not exist
        return 0 < len(subject) <= 4 and all(word.isalpha() for word in subject)
    if _SAID.IS_AT.search(before):
        return not DENIAL.search(before)
    return _SAID.IS.search(before) is not None and SUPPOSED.search(before) is None


_ROWS = {
    form: {other: group.split("|")[0] for group in row.split() for other in group.split("|")}
    for row in names.TABLES["rows"].split(";")
    for form in row.replace("|", " ").split()
}


def is_told(wanted: str, clause: str) -> bool:
    """True if a clause states this one alone of words that exclude each other: "he faces north"."""
    clause = re.sub(r"\A(?:If|When) [^,]*, (?!.*\b(?:would|could)\b)", "", clause)
    said = normal("then " + CONCLUDES_ONLY.split(clause)[-1]).removeprefix("then ")
    rest = said if wanted.isascii() else said.replace(wanted, "")
    if said.removesuffix(" years old") == wanted:
        return True
    if DENIAL.search(rest) or SUPPOSED.search(rest):
        return False
    if not wanted.isascii() or said == f"is {wanted}":
        return said.endswith(wanted) or concludes(said, wanted)
    if wanted == "infinitely many" and _SAID.ARE_INFINITE.search(said):
        return True
    row = _ROWS.get(wanted, {})
    told: set[str] = set()
    for number, part in enumerate(said.split(" and ")):
        start = max((verb.end() for verb in _SAID.PREDICATE.finditer(part)), default=0)
        for word in _SAID.WORD.finditer(part, start):
            is_verb = word[0].endswith("es") and word.start() > 0  # it converges
            if word[0] in row and (start or is_verb or number):
                is_denied = _SAID.NEIGHBOUR.search(part[: word.start()])
                told.add("" if is_denied else row[word[0]])
    return told == {row.get(wanted)}


_HINTS = ("no", "empty", "exist", "inconsistent", "unsolvable", "solvable")
MAX_SAID = 200


def conclusion(sentence: str) -> str:
    """The conclusion of a sentence: "it has no roots" of "The sum is 1 > 0, so it has no roots"."""
    return _SAID.CONCLUDES.split(sentence[-2 * MAX_SAID :])[-1].strip()


SYNONYMS = {  # normal forms that say the same as one, itself among them
    normal(word): frozenset(map(normal, group.split("|")))
    for group in names.TABLES["synonyms"].split(";")
    for word in group.split("|")
}


def is_known(word: str) -> bool:
    """True if a word is a whole answer, as odd and Tuesday are."""
    return word in SYNONYMS or word.lower() in _ROWS


def is_said_of(name: str, sentence: str) -> bool:
    """True if a sentence says of a name, and of no other, that it stands out: "Emma won."."""
    sentence = CONCLUDES_ONLY.split(sentence.strip(" .!*"))[-1]
    others = set(_SAID.OTHER_NAME.findall(sentence)) - {name}
    if re.fullmatch(r"[A-Z][a-z]{1,14}", name) is None or others or DENIAL.search(sentence):
        return False
    for part in re.split(r",\s+", sentence):
        part = _SAID.OPENS.sub("", part)
        subject, _, rest = part.partition(" ")
        if subject.strip("*") == name and _SAID.NAMED.fullmatch(rest) is not None:
            return True
    found = _SAID.IT_IS.search(sentence)
    return found is not None and found[1] == name and not SUPPOSED.search(sentence)


_CHOICES = names.patterns("choices")
_ITEM_END = re.compile(r"\s*(?:[,;&]|\band\b)\s*(?:and\b\s*)?|\s+")
SIGN = _CHOICES.SIGN
_NUMERALS = frozenset(("I", "II", "III", "IV", "V", "VI"))
_BRACES, _MARKS = str.maketrans("", "", "{}$"), str.maketrans("", "", "{}$().*")


def choice(text: str) -> str | None:
    """The letter of a multiple-choice answer: "B", "(B)", "B) 12 cm", "option B"."""
    text = COMMANDS.sub("", SPACES.sub(" ", text)).replace("**", "")
    text = " ".join(text.translate(_BRACES).split())
    for rule in (_CHOICES.CONCLUDED, _CHOICES.FOUND_RIGHT):
        if (found := rule.search(text)) is not None:
            return found[1]
    match = _CHOICES.CHOICE.match(text)
    if match is None and (small := _SAID.SMALL.fullmatch(text)):
        return (small[1] or small[2]).upper()
    rules = (_CHOICES.WITH_TEXT, _CHOICES.NAMED, _CHOICES.CHOSEN)
    match = match or next(filter(None, (rule.match(text) for rule in rules)), None)
    if match is None:  # B of "I take (B), as it fits"
        letters = set(re.findall(r"\(([A-Z])\)", text))
        return letters.pop() if len(letters) == 1 and not DENIAL.search(text) else None
    rest = text[match.end() :]
    if _CHOICES.SECOND_LETTER.search(rest) or _CHOICES.REFUSED.match(rest):
        return None  # "(D) is incorrect"
    return match[1]


def chosen(sentence: str) -> str | None:
    """B of "So I choose B", the sentence that ends a response."""
    found = _CHOICES.CHOSEN.match(sentence) or _CHOICES.CONCLUDED.search(sentence)
    found = found or _SAID.IS_OPTION.fullmatch(sentence)
    return None if found is None else found[1]


def mentioned(clause: str) -> str | None:
    """B of "this matches option B": the only option that a clause names, denying nothing."""
    clause = re.sub(r"(?<![A-Za-z(])[A-H]\)", "", clause.removeprefix("A "))
    named = _CHOICES.OPTION.search(clause)
    letters = set(_CHOICES.LONE_LETTER.findall(clause))
    rest = clause.lower().replace("only", "")
    is_denied = DENIAL.search(rest) or SUPPOSED.search(rest)
    return letters.pop() if named and len(letters) == 1 and not is_denied else None


def choices(text: str) -> frozenset[str] | None:
    """The letters of a question with several: "ACD", "A, C and D"; None for anything else."""
    if len(re.findall("[A-H]", text)) < 2:
        return None
    bare = COMMANDS.sub("", SPACES.sub(" ", text)).translate(_MARKS).strip()
    bare = _CHOICES.ABOUT_OPTIONS.sub("", bare).strip()
    letters = "".join(_ITEM_END.split(bare))
    is_run = bare.isalpha() and list(letters) != sorted(letters)  # BAD is a word, ABD a run
    is_list = re.fullmatch("[A-H]{2,8}", letters) and len(set(letters)) == len(letters)
    return frozenset(letters) if is_list and not is_run else None


def statements(text: str) -> frozenset[str] | None:
    """The numerals of "I and III only" or "Statements I, III are true"; None for anything else."""
    said = _CHOICES.ABOUT_STATEMENTS.sub(" ", bare(SPACES.sub(" ", text)).replace("$", " "))
    found = [one.strip("().") for one in _ITEM_END.split(said.strip(" .()")) if one.strip("().")]
    is_one = found and _NUMERALS.issuperset(found) and len(set(found)) == len(found)
    return frozenset(found) if is_one else None


def lettered(text: str) -> tuple[str, str] | None:
    """("C", "12") of "(C) 12" and "C. 12"; None where no maths follows, or another letter."""
    match = _CHOICES.LETTERED.fullmatch(text) if len(text) < MAX_CHARS else None
    if match is None or re.search(r"\([A-H]\)|\b[A-H][).]\s", match["rest"]):
        return None
    return match["bracketed"] or match["plain"], match["rest"]


def is_choice(text: str) -> bool:
    """True if a gold is one capital letter, as the key of a question."""
    text = COMMANDS.sub("", text).translate(_BRACES).strip()
    return re.fullmatch(r"\(?\s*[A-Z]\s*\)?\.?", text) is not None


_MONTHS = {"sept": 9} | {
    name: number for number, month in enumerate(map(str.lower, languages.MONTHS), 1)
    for name in (month, month[:3])
}  # fmt: skip
_DATES = names.patterns("dates", MONTH="|".join(_MONTHS))
_HOURS = {name: (12, 0, 0) for name in ("noon", "midday", "12 noon")}
_HOURS |= {name: (0, 0, 0) for name in ("midnight", "12 midnight")}


def last_mention(clause: str) -> str:
    """The last date or time of day that a clause names as its own; else nothing."""
    clause = normal(clause)
    found = list(_DATES.MENTION.finditer(clause))
    if not found or _CHOICES.BESIDE.search(clause[: found[-1].start()]):
        return ""
    half = {"in the morning": " am", "in the afternoon": " pm", "in the evening": " pm"}
    after = clause[found[-1].end() :].strip()
    return found[-1][0] + next((half[words] for words in half if after.startswith(words)), "")


def is_date(text: str) -> bool:
    """True if a gold is a date or a time of day and no sum, quotient or ratio of numbers."""
    if re.search(r"[^\W\d_]", text):
        return date(text) is not None or clock(text) is not None
    return _DATES.ALONE.fullmatch(text.strip(" $")) is not None and date(text) is not None


def clock(text: str) -> tuple[tuple[int, int, int], bool] | None:
    """((hour, minute, second) of the day, whether the half of the day is stated) of a time."""
    if (named := _HOURS.get(normal(text))) is not None:
        return named, True
    said = re.sub(r"(?<=\d)\s*:\s*(?=\d)", ":", normal(text))
    match = _DATES.HOUR.fullmatch(_SAID.IT_IS_ON.sub("", said))
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 23 or minute > 59 or second > 59 or (match[4] and not 1 <= hour <= 12):
        return None
    if match[4]:
        hour = hour % 12 + (12 if match[4] == "p" else 0)
    return (hour, minute, second), bool(match[4]) or not 0 < hour < 13


def date(text: str) -> tuple[int | None, int, int] | None:
    """(year, month, day) of a date; 3/5/2020 is the fifth of March. The year may be missing."""
    text = _SAID.WEEKDAY.sub("", _SAID.IT_IS_ON.sub("", normal(text)))
    forms = _DATES.YEAR_FIRST, _DATES.YEAR_LAST, _DATES.MONTH_FIRST, _DATES.DAY_FIRST
    match = next(filter(None, (form.fullmatch(text) for form in forms)), None)
    if match is None:
        return None
    year, day = int(match["year"] or 0), int(match["day"])
    month = _MONTHS.get(match["month"]) or int(match["month"])
    try:
        datetime.date(year or 2000, month, day)
    except ValueError:
        return None
    return year if match["year"] else None, month, day
