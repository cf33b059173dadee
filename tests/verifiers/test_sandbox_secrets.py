"""Nothing of one program is in the memory of the next, though all are forked from one process."""

import secrets

import pytest

from loong_jax.sandbox import Limits, Program, Sandbox
from tests.verifiers.sandbox_checks import run

# The sandbox shows a program no map of its memory, so the search asks the kernel page by page: a
# write to a pipe copies a page, and fails with EFAULT where there is none. It starts around places
# that Python and the C library have given out, and widens for as long as there is memory nearby.
SEARCH = """
import ctypes, os, re
libc = ctypes.CDLL(None)
PAGE, GAP = 4096, 2048

def pages(place, step, read_end, write_end):
    missed = 0
    while missed < GAP:
        count = libc.write(write_end, ctypes.c_void_p(place), ctypes.c_size_t(PAGE))
        missed = 0 if count > 0 else missed + 1
        yield os.read(read_end, PAGE) if count > 0 else b""
        place += step

def search():
    mark = re.compile(b"ses" + b"ame-[0-9a-f]{16}")
    ends = os.pipe()
    kept = [bytes(2**n) for n in range(4, 22)] + [object(), [0] * 10, {}]
    places = [id(one) for one in kept]
    places += [ctypes.addressof(ctypes.create_string_buffer(2**n)) for n in range(4, 22)]
    seen, found = set(), set()
    for place in places:
        place -= place % PAGE
        if place in seen:
            continue
        for step in (PAGE, -PAGE):
            last, at = b"", place
            for page in pages(place, step, *ends):
                if at in seen and at != place:
                    break
                seen.add(at)
                both = last + page if step > 0 else page + last
                found |= set(mark.findall(both))
                last, at = page, at + step
    return sorted(found)[0].decode() if found else f"nothing in {len(seen)} pages"
"""
LIMITS = Limits(cpu_s=20.0, wall_s=60.0)


@pytest.fixture(scope="module")
def searching(namespaces):
    with Sandbox(LIMITS, tier=namespaces.tier) as sandbox:
        yield sandbox


def mark() -> str:
    return f"sesame-{secrets.token_hex(8)}"


@pytest.mark.bubblewrap
def test_a_program_finds_nothing_of_those_before_it(searching):
    """Source, arguments, output and values of other answers are not where it can read."""
    for size in (1, 300, 3000):
        source = f"def f(x):\n    print({mark()!r} * 20)\n    return [x, {mark()!r}]"
        searching.run([Program(source=source, arguments=[[[mark()] * size]])])
        run(searching, f"# {mark()}\ndef f(): raise ValueError({mark()!r})")
        run(searching, f"# {mark() * size}\nimport os\nos._exit(3)")
    said = run(searching, SEARCH + "\ndef f(): return search()")
    assert said.status == "ok", said
    assert said.values[0].startswith("nothing in "), said
    assert int(said.values[0].split()[2]) > 500  # the search saw the interpreter's memory


@pytest.mark.bubblewrap
@pytest.mark.parametrize("size", [1, 3000])
def test_the_search_finds_what_is_there(searching, size):
    """Else the one above would prove nothing."""
    given = mark()
    said = run(searching, SEARCH + "\ndef f(given): return search()", [given] * size)
    assert said.values == (given,), said
