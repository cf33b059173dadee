"""Letters of multiple choice, and numerals of statements: (B), ACD, I and III only."""

import re

from loong_jax.verifiers.maths.wording import phrases

_CHOICE = re.compile(
    r"(?:(?:option|choice|answer|statement)\s*(?:is\s*)?:?\s*)?\(?\s*([A-Z])\s*(?:\)|\.(?!\w)|:|,|$|(?=\)))"
)
_WITH_TEXT = re.compile(  # C - the third, C (12)
    r"\(?([A-H])\)?(?=\s*(?:[\u2013\u2014]\s*|-\s+(?=.*[A-Za-z]{2})|\s\(.*\)\Z))"
)
_NAMED = re.compile(r"(?i:option|choice|answer)\s*(?i:is)?:?\s*\(?([A-Z])\)?(?![\w])")
_SECOND_LETTER = re.compile(  # "B or C", "A, B", "B) (C)"; but not "B: A gene"
    r"(?:^|[\s(,/])(?:or|and|/|,)?\s*\(?(?:[B-H]|A(?!\s+(?!or\b|and\b|is\b)[a-z]))\)?(?=[\s).,:]|$)"
)
_SINGLE = re.compile(r"\(?\s*([A-Z])\s*\)?\.?")
_LETTERED = re.compile(
    r"\$?(?:\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{)?\s*"
    r"(?:\((?P<bracketed>[A-H])\)[\s}]*|(?P<plain>[A-H])[).]\}?(?=\s))"
    r"(?:\\[ ,;:!]|\\q?quad|[~\s])*(?P<rest>(?=[^A-Za-z]*[\d\\]).+)",
    re.DOTALL,
)
_ANOTHER_LETTER = re.compile(r"\([A-H]\)|\b[A-H][).]\s")
_CONCLUDED = re.compile(
    r"(?i:\b(?:so|therefore|thus|hence|leaving|leaves)\b)(?:[\s,:]|\b(?:the|answer|option|choice|it|is|"
    r"must|be)\b)*\(?([A-Z])\)?\.?\Z"
)
_FOUND_RIGHT = re.compile(
    r"(?i:(?:\A|[.\n]\s*)(?:(?:so|therefore|thus|hence)[\s,:]+)?(?:the\s+)?(?:option|choice|answer))"
    r"\s+\(?([A-Z])\)?\s+(?i:is|must be)\s+(?i:(?:the\s+)?(?:correct|right))"
    r"(?i:\s+(?:one|answer|choice))?\.?\Z"
)
_CHOSEN = re.compile(
    r"(?:So |Thus |Hence |Therefore )?(?:I|[Ww]e)(?: would| will|'d|'ll)? "
    r"(?:choose|chose|pick|picked|select|selected|take|go with) (?:option |choice |answer )?"
    r"\(?([A-Z])\)?(?!\w)"
)
_REFUSED = re.compile(
    r"\W*(?:is|was|are|can|does|must be)?\s*(?:n't|not|cannot|wrong|incorrect|false|impossible|"
    r"excluded|eliminated)\b",
    re.IGNORECASE,
)
_ABOUT_STATEMENTS = re.compile(
    r"\\text\w*|\\mathrm|[{}*]|\b(?i:only|just|both|all|the|statements?|conditions?|options?|items?)\b|"
    r"\b(?:is|are|must be|(?:is|are) always)\s+(?:true|correct|valid)\b"
)
_ABOUT_OPTIONS = re.compile(
    r"\A(?:the\s+)?(?:(?:only|both|true|correct|right|valid|options?|choices?|answers?|"
    r"statements?)\s+)+(?:(?:is|are)\s+)?|"
    r"\s+(?:only|(?:are|is)\s+(?:true|correct|right))\Z",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?<![A-Za-z])(?i:option|choice|answer|graph|figure|only|for|with|pick|choose|is|be)\s*\(?[A-H](?!['A-Za-z])|"
    r"\A[A-H] is (?:the only|correct|right|true)"
)
_LONE_LETTER = re.compile(r"(?<![A-Za-z])([B-H]|A(?! [a-z])|(?<=nly )A)(?!['A-Za-z])")
_NUMERAL = re.compile(r"I|II|III|IV|V|VI")


def choice(text: str) -> str | None:
    """The letter of a multiple-choice answer: "B", "(B)", "B) 12 cm", "option B"."""
    text = phrases.COMMANDS.sub("", phrases.SPACES.sub(" ", text)).replace("**", "")
    text = " ".join(re.sub(r"[{}$]", "", text).split())
    for rule in (_CONCLUDED, _FOUND_RIGHT):
        if (found := rule.search(text)) is not None:
            return found[1]
    match = _CHOICE.match(text)
    if match is None and (small := re.fullmatch(r"\(?([a-h])\)\.?", text)):
        return small[1].upper()
    match = match or _WITH_TEXT.match(text) or _NAMED.match(text) or _CHOSEN.match(text)
    if match is None:
        return _only_letter_in_brackets(text)
    rest = text[match.end() :]
    if _SECOND_LETTER.search(rest) or _REFUSED.match(rest):
        return None  # "(D) is incorrect"
    return match[1]


def chosen(sentence: str) -> str | None:
    """B of "So I choose B", the sentence that ends a response."""
    found = _CHOSEN.match(sentence) or _CONCLUDED.search(sentence)
    return None if found is None else found[1]


def mentioned(clause: str) -> str | None:
    """B of "this matches option B": the only option that a clause names, denying nothing."""
    clause = clause.removeprefix("A ")
    named = _OPTION.search(clause)
    letters = set(_LONE_LETTER.findall(clause))
    rest = clause.lower().replace("only", "")
    is_denied = phrases.DENIAL.search(rest) or phrases.SUPPOSED.search(rest)
    return letters.pop() if named and len(letters) == 1 and not is_denied else None


def _only_letter_in_brackets(text: str) -> str | None:
    """B of "I take (B), as it fits": the only letter named so, with nothing denied."""
    letters = re.findall(r"\(([A-Z])\)", text)
    if len(set(letters)) != 1 or phrases.DENIAL.search(text):
        return None
    return letters[0]


def choices(text: str) -> frozenset[str] | None:
    """The letters of a question with several: "ACD", "A, C and D"; None for anything else."""
    bare = phrases.COMMANDS.sub("", phrases.SPACES.sub(" ", text))
    for mark in "{}$().*":
        bare = bare.replace(mark, "")
    bare = _ABOUT_OPTIONS.sub("", bare.strip())
    letters = re.sub(r"\s*(?:[,;&]|\band\b)\s*(?:and\b\s*)?|\s+", "", bare.strip())
    ordered = re.fullmatch("[A-H]{2,8}", letters) is not None and len(set(letters)) == len(letters)
    is_run = bare.strip().isalpha()  # BAD is a word, ABD a run of letters
    if not ordered or (is_run and list(letters) != sorted(letters)):
        return None
    return frozenset(letters)


def statements(text: str) -> frozenset[str] | None:
    """The numerals of "I and III only" or "Statements I, III are true"; None for anything else."""
    said = _ABOUT_STATEMENTS.sub(" ", phrases.bare(phrases.SPACES.sub(" ", text)).replace("$", " "))
    found = re.split(r"\s*(?:,|;|&|\band\b)\s*(?:and\b\s*)?|\s+", said.strip(" .()"))
    found = [one.strip("().") for one in found if one.strip("().")]
    if not found or not all(_NUMERAL.fullmatch(one) for one in found):
        return None
    return frozenset(found) if len(set(found)) == len(found) else None


def lettered(text: str) -> tuple[str, str] | None:
    """("C", "12") of "(C) 12" and "C. 12"; None where no maths follows, or another letter."""
    match = _LETTERED.fullmatch(text) if len(text) < phrases.MAX_CHARS else None
    if match is None or _ANOTHER_LETTER.search(match["rest"]):
        return None
    return match["bracketed"] or match["plain"], match["rest"]


def is_choice(text: str) -> bool:
    """Whether a gold is one capital letter, as the key of a question."""
    text = phrases.COMMANDS.sub("", text).replace("{", "").replace("}", "").replace("$", "").strip()
    return _SINGLE.fullmatch(text) is not None
