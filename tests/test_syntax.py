"""Code is parsed in several threads, as gates do it, while other threads come in between."""

import ast
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from loong_jax import syntax

SOURCE = "def f(a):\n    return [a + 1, (a, 2), {a: 3}]\n" * 50


@pytest.fixture
def interrupting() -> Iterator[None]:
    """Often, and in the middle of a tree, the running thread lets another one run."""
    threshold = gc.get_threshold()

    def let_others_run(phase: str, info: dict) -> None:
        time.sleep(1e-4)

    gc.callbacks.append(let_others_run)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(let_others_run)


def test_threads_parse_side_by_side(interrupting):
    with ThreadPoolExecutor(4) as threads:
        trees = list(threads.map(syntax.parse, [SOURCE] * 20))
    assert {ast.dump(tree) for tree in trees} == {ast.dump(ast.parse(SOURCE))}


@pytest.mark.parametrize("source", ["def", "a\0b", "(" * 10_000, "x" + "+x" * 100_000])
def test_what_cannot_be_read_is_an_error_of_the_list(source):
    with pytest.raises(syntax.UNREADABLE):
        syntax.parse(source)
    assert isinstance(syntax.parse_expression("f(1)"), ast.Call)
