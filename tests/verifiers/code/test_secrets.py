"""Expected answers are nowhere in a program's reach: neither in files nor in its memory."""

import secrets

import pytest

from loong_jax.verifiers import get_verifier

# Looks for the mark through files, environment, objects, frames and its own memory, page by page.
SEARCH = """
import os, re

def search():
    mark = re.compile(b"ses" + b"ame-([0-9a-f]{16})")
    found = set()
    for root, _, names in os.walk("/tmp"):
        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                found |= set(mark.findall(file.read()))
    for place in ("/proc/self/environ", "/proc/self/cmdline", "/proc/1/environ", "/proc/1/cmdline"):
        try:
            found |= set(mark.findall(open(place, "rb").read()))
        except OSError:
            pass
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1][0] != "r" or "[v" in line or high - low > 2**28:
                continue
            try:
                memory.seek(low)
                found |= set(mark.findall(memory.read(high - low)))
            except (OSError, ValueError):
                pass
    return "ses" + "ame-" + sorted(found)[0].decode() if found else "nothing"
"""


@pytest.fixture(scope="module", params=[True, False], ids=["fork", "plain"])
def verifier(request, needs_isolation):
    one = get_verifier("code", num_boxes=1, uses_fork=request.param)
    yield one
    one.close()


def mark():
    return f"sesame-{secrets.token_hex(8)}"


def judge(verifier, answer, *tests):
    return verifier.verify_record({"language": "python", "answer": answer, "tests": list(tests)})


def test_what_a_call_should_return_is_not_found(verifier):
    wanted = mark()
    answer = SEARCH + "\ndef f(x):\n    return search()\n"
    for _ in range(2):  # nothing is left in the zygote for the next run either
        said = judge(verifier, answer, {"call": "f", "args": [1], "returns": wanted},
                     {"call": "f", "args": [2], "returns_any": [mark(), wanted]})  # fmt: skip
        assert said.reason == "wrong answer", said
        assert "nothing" in said.details["tests"][0]["detail"]


def test_what_should_be_printed_is_not_found(verifier):
    answer = SEARCH + "\nprint(search())\n"
    for _ in range(2):
        said = judge(verifier, answer, {"stdin": "1", "stdout": mark()})
        assert said.reason == "wrong answer", said
        assert said.details["tests"][0]["stdout"] == "nothing\n"


def test_the_search_finds_what_is_there(verifier):
    """Else the two above would prove nothing."""
    given = mark()
    answer = SEARCH + "\ndef f(x):\n    return search()\n"
    assert judge(verifier, answer, {"call": "f", "args": [given], "returns": given}).is_correct
    printed = SEARCH + "\nkept = input()\nprint(search())\n"
    assert judge(verifier, printed, {"stdin": given + "\n", "stdout": given}).is_correct


def test_a_run_finds_nothing_of_those_before_it(verifier):
    """Input, arguments, source and output of other answers are not in the fork server's memory."""
    printing = f"import sys\n# {mark()}\nprint(sys.stdin.read() * 3)"
    returning = f"def f(x):\n    print({mark()!r})\n    return [x, {mark()!r}]"
    for size in (1, 400, 9000):
        judge(verifier, printing, {"stdin": (mark() + "\n") * size, "stdout": ""})
        judge(verifier, returning, {"call": "f", "args": [[mark()] * size], "returns": 1})
    said = judge(verifier, SEARCH + "\nprint(search())\n", {"stdin": "", "stdout": "nothing\n"})
    assert said.is_correct, said


def test_no_module_of_ours_can_be_imported(verifier):
    answer = (
        "import sys\n"
        "print([name for name in sys.modules if 'loong' in name])\n"
        "try:\n    import loong_jax\nexcept ImportError:\n    print('absent')\n"
    )
    assert judge(verifier, answer, {"stdin": "", "stdout": "[]\nabsent\n"}).is_correct
