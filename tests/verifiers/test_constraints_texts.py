"""Constraints on texts as people write them: scripts, code, lists, links, ends of lines."""

# ruff: noqa: RUF001

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import constraints

WAYS = {"exclude": False, "include": True}


def kept(constraint, text):
    return constraints.check([constraint], text)[0].is_kept


def number(of, text, most=60):
    return next(n for n in range(most) if kept({"kind": "count", "of": of, "exactly": n}, text))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("See https://example.org/a.b?c=1 for more.", 1),
        ("Use version 2.7.1 of the tool.", 1),
        ("Pi is about 3.14 in value.", 1),
        ("Mail to a.b@example.org. Or call!", 2),
        ("Open main.py and run it. It prints 0.5.", 2),
        ("The price is $1.50! Is it fair? Yes.", 3),
        ("He said \u201cStop.\u201d Then he left.", 2),
        ("(It works.) It does.", 2),
        ("**Bold.** Plain.", 2),
        ("Dr. Smith met Mrs. Jones, e.g. at noon.", 1),
        ("Bring pens, paper, etc. and a ruler. Go.", 2),
        ("See Fig. 3 and Eq. 4. Then read on.", 2),
        ("J. K. Rowling lives in the U.K. now.", 1),
        ("Really?! Yes... No.", 3),
        ("1. Wash it.\n2. Cut it.\n3. Eat it.", 3),
        ("one. two. three.", 3),
        ("今天下雨。我在家！你呢？", 3),
        ("价格是3.5元。", 1),
        ("你好.再见.", 2),
        ("यह एक है। यह दो है।", 2),
        ("هل أنت هنا؟ نعم.", 2),
        ("No end", 1),
        ("...", 0),
    ],
)
def test_sentences(text, count):
    assert number("sentences", text + "\n\nx" if text == "..." else text) == count + (text == "...")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("مُحَمَّد رَسُول", 2),
        ("हिन्दी में लिखो", 3),
        ("தமிழ் மொழி", 2),
        ("cafe\u0301 au lait", 3),
        ("שָׁלוֹם עוֹלָם", 2),
        ("می\u200cخواهم بروم", 2),
        ("state-of-the-art design", 2),
        ("don\u2019t stop", 2),
        ("나는 서울에서 산다", 3),
        ("我喜欢AI技术", 6),
        ("a_b c", 3),
        ("Привет, мир!", 2),
        ("Straße 5", 2),
        ("co\u00adoperate now", 2),
    ],
)
def test_words(text, count):
    assert number("words", text) == count


@pytest.mark.parametrize(
    ("of", "text", "count"),
    [
        ("headings", "# Title\n\n```python\n# comment\nx=1\n```", 1),
        ("headings", "~~~\n## no\n~~~\n## yes", 1),
        ("headings", "#hashtag\n # one\n    # code", 1),
        ("headings", "####### seven\n###### six ######", 1),
        ("headings", "> ```\n> # no\n> ```\n# yes", 1),
        ("bullets", "- one\n- two\n\n- - -\n\nEnd.", 2),
        ("bullets", "* * *\n* one\n***\n_ _ _", 1),
        ("bullets", "- one\n- two\n\n```\n- three\n```", 2),
        ("bullets", "- one\n  ```\n  - no\n  ```\n  - inner", 2),
        ("bullets", "-5 degrees\n- 5 degrees\n--- x", 1),
        ("bullets", "\u2022 one\n\u2022 two\n*bold* text", 2),
        ("bullets", "- [ ] open\n- [x] done", 2),
        ("numbered_items", "1. a\n2. b\n```\n3. c\n```", 2),
        ("numbered_items", "1.5 metres\n2) b", 1),
        ("code_blocks", "~~~python\nx=1\n~~~", 1),
        ("code_blocks", "```\na\n```\ntext\n~~~\nb\n~~~", 2),
        ("code_blocks", "````md\n```\nx\n```\n````", 1),
        ("code_blocks", "> ```\n> x\n> ```", 1),
        ("code_blocks", "```python\nx = 1", 0),
        ("code_blocks", "Use ```x``` here", 0),
    ],
)
def test_lists_headings_and_code(of, text, count):
    assert number(of, text) == count


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("of", "lines", "count"),
    [
        ("paragraphs", ["one", "", "two"], 2),
        ("paragraphs", ["one", " ", "", "two", "three"], 2),
        ("lines", ["one", "", "two"], 2),
        ("bullets", ["- a", "- b"], 2),
        ("headings", ["# a", "text"], 1),
        ("code_blocks", ["```", "x", "```"], 1),
        ("characters", ["ab", "c"], 4),
        ("sentences", ["One.", "Two."], 2),
        ("numbered_items", ["1. a", "2. b"], 2),
        ({"text": "a\nb"}, ["a", "b"], 1),
    ],
)
def test_ends_of_lines_are_those_of_any_system(end, of, lines, count):
    assert number(of, end.join(lines)) == count
    assert kept({"kind": "starts_with", "text": lines[0]}, end.join(lines) + end)
    assert kept({"kind": "ends_with", "text": lines[-1]}, end.join(lines) + end)


@pytest.mark.parametrize(
    ("text", "wanted", "is_there"),
    [
        ("나는 서울에서 산다.", "서울", True),
        ("ฉันชอบแมวมาก", "แมว", True),
        ("私はりんごが好きです。", "りんご", True),
        ("我喜欢苹果和梨。", "苹果", True),
        ("我喜欢香蕉。", "苹果", False),
        ("我在学AI技术。", "AI", True),
        ("我在用OpenAI技术。", "AI", False),
        ("AI를 배운다", "ai", True),
        ("한국어를 배운다", "국어", False),
        ("ខ្ញុំស្រលាញ់ឆ្មា", "ឆ្មា", True),
        ("ပန်းသီးကြိုက်တယ်", "ပန်းသီး", True),
        ("concatenate", "cat", False),
        ("the cat's tail", "cat", True),
        ("naïve", "na", False),
        ("cafe\u0301", "cafe", False),
        ("कमी है", "कम", False),
        ("कम है", "कम", True),
        ("un_cat", "cat", False),
        ("C++ and C#", "c++", True),
        ("5kg of it", "5", False),
        ("第5章", "5", True),
    ],
)
def test_keywords_are_whole_words_where_words_have_spaces(text, wanted, is_there):
    for kind, is_kept in WAYS.items():
        assert kept({"kind": kind, "texts": [wanted]}, text) is (is_kept is is_there)
    assert (number({"text": wanted}, text) > 0) is is_there


def test_keywords_are_counted_in_every_script():
    assert number({"text": "苹果"}, "苹果很好，我喜欢苹果派。") == 2
    assert number({"text": "서울"}, "서울은 서울이다. 북서울") == 2
    assert number({"text": "cat"}, "Cat, cats and a CAT.") == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a cafe\u0301 here", "caf\u00e9"),
        ("a caf\u00e9 here", "cafe\u0301"),
        ("The <s>old</s> price. alpha", "alpha"),
        ("alpha, and models end their thinking with </think> tags.", "alpha"),
        ("alpha: they close it by </think>, mostly", "alpha"),
        ("alpha: put it in <answer>beta</answer> tags.", "alpha"),
        ("alpha\n<longcat_answer>beta</longcat_answer>", "alpha"),
        ("Write `</think>` after it. alpha", "write"),
        ("```\n<think>\n```\nalpha", "alpha"),
        ("alpha **beta** \\(x\\)", "**beta**"),
        ("<longcat_answer>alpha <answer>x</answer> beta</longcat_answer>", "<answer>x</answer>"),
        ("<think>no</think><answer>alpha</answer>", "alpha"),
        ("no\n</think>\n\nalpha", "alpha"),
        ("The value is \u22125.", "\u22125"),
        ("alpha</longcat_s>", "alpha"),
    ],
)
def test_texts_are_checked_as_they_are_written(text, wanted):
    for constraint in ({}, {"exact": True}):
        wanted = wanted if constraint or wanted != "write" else "Write"
        wanted = "Write" if wanted == "write" else wanted
        assert kept({"kind": "include", "texts": [wanted], **constraint}, text)
        assert not kept({"kind": "exclude", "texts": [wanted], **constraint}, text)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("<think>alpha</think>beta", "alpha"),
        ("alpha.</think>\n\nbeta", "alpha"),
        ("alpha\n</think>beta", "alpha"),
        ("so it is 5 </think> The end", "so"),
        ("<longcat_think>alpha, by </think> tags</longcat_think>beta", "alpha"),
        ("<longcat_think>alpha", "alpha"),
        ("beta</longcat_s><longcat_pad>", "longcat_pad"),
        ("<think>alpha</think><longcat_answer>beta</longcat_answer>", "longcat_answer"),
        ("The value is \u22125.", "-5"),
        ("a caf\u00e9 here", "cafe"),
    ],
)
def test_thinking_and_ends_are_no_part_of_it(text, hidden):
    assert not kept({"kind": "include", "texts": [hidden], "exact": True}, text)


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ('```JSON\n{"a": 1}\n```', True),
        ('```Json\n{"a": 1}```', True),
        ('~~~json\n{"a": 1}\n~~~', True),
        ('```\n{"a": {"b": [1]}}\n```', True),
        ('{"a": "```"}', True),
        ('{"a": "</think>"}', True),
        ('```json\r\n{"a": 1}\r\n```', True),
        ('{"a": NaN}', False),
        ('{"a": -Infinity}', False),
        ('{"a": 1,}', False),
        ("{'a': 1}", False),
        ('```json\n{"a": 1}\n```\nThat is it.', False),
        ('Here:\n```json\n{"a": 1}\n```', False),
        ('```python\n{"a": 1}\n```', False),
        ('{"a": 1}{"a": 2}', False),
        ('[{"a": 1}]', False),
        ('{"b": 1}', False),
    ],
)
def test_json_is_the_whole_answer(text, is_kept):
    assert kept({"kind": "json", "keys": ["a"]}, text) is is_kept


def test_a_keyword_of_no_sign_is_refused():
    with pytest.raises(VerifierError):
        kept({"kind": "include", "texts": [""]}, "x")
