"""Calls of functions in languages that are compiled or loaded by a driver of ours."""

import math
import time

import pytest

from loong_jax.verifiers.sandbox import drivers, executor
from tests import sweeps
from tests.bounds import EXPLODES_S

ADD = {
    "cpp": "#include <vector>\nint add(int a, int b) { return a + b; }\nint main() { return 7; }",
    "go": 'package main\nimport "fmt"\nfunc add(a int, b int) int { return a + b }\n'
    "func main() { fmt.Println(7) }",
    "java": "public class Main { static int add(int a, int b) { return a + b; } }",
    "ruby": "def add(a, b)\n  a + b\nend",
    "rust": "#![allow(unused)]\nfn add(a: i32, b: i32) -> i32 { a + b }\n"
    "pub fn main() { panic!() }",
    "c": "#include <stdio.h>\n/* add(a, b) { */\nstatic inline int add(int a, int b);\n"
    "int twice(int x)\n{ return add(x, x); }\nstatic inline int add(int a, int b)\n"
    "{ return a + b; }\nint main(void) { return 7; }",
    "typescript": "function add(a: number, b: number): number { return a + b }",
}
# a list of words, a table of counts and a flag go in; the words in order and a mean come out
RICH = {
    "cpp": """
#include <bits/stdc++.h>
using namespace std;
#define int long long
#define call list
class Solution {
  int made = 1;
public:
  pair<vector<string>, double> f(vector<string>& words, const map<string, int>& counts, bool up) {
    sort(words.begin(), words.end());
    if (!up) reverse(words.begin(), words.end());
    double sum = 0;
    for (auto& one : counts) sum += one.second;
    return {words, sum / counts.size() * made};
  }
};""",
    "go": """
package main
import "sort"
type Solution struct{}
func (s *Solution) f(words []string, counts map[string]int64, up bool) ([]string, float64) {
  sort.Strings(words)
  if !up { sort.Sort(sort.Reverse(sort.StringSlice(words))) }
  sum := 0.0
  for _, one := range counts { sum += float64(one) }
  return words, sum / float64(len(counts))
}""",
    "java": """
import java.util.*;
class Solution {
  List<Object> f(List<String> words, Map<String, Long> counts, boolean up) {
    words.sort(up ? Comparator.naturalOrder() : Comparator.reverseOrder());
    double sum = 0;
    for (long one : counts.values()) sum += one;
    return List.of(words, sum / counts.size());
  }
}""",
    "ruby": """
class Solution
  def f(words, counts, up)
    words = words.sort
    words.reverse! unless up
    [words, counts.values.sum.to_f / counts.size]
  end
end""",
    "rust": """
use std::collections::HashMap;
impl Solution {
    pub fn f(
        mut words: Vec<String>, counts: &HashMap<String, i64>, up: bool
    ) -> (Vec<String>, f64) {
        words.sort();
        if !up { words.reverse(); }
        (words, counts.values().sum::<i64>() as f64 / counts.len() as f64)
    }
}""",
    "typescript": """
class Solution {
  f(words: string[], counts: Record<string, number>, up: boolean): [string[], number] {
    words.sort();
    if (!up) words.reverse();
    const values = Object.keys(counts).map((key) => counts[key]);
    return [words, values.reduce((a, b) => a + b, 0) / values.length];
  }
}""",
}  # fmt: skip
# a value that JSON cannot carry as a number, one that is none, and one that does not come back
BIG = {
    "cpp": "unsigned long long big() { return ~0ull; }",
    "go": "package main\nfunc big() uint64 { return ^uint64(0) }",
    "java": "public class Main { static java.math.BigInteger big() "
    '{ return new java.math.BigInteger("18446744073709551615"); } }',
    "ruby": "def big\n  2**64 - 1\nend",
    "rust": "fn big() -> Option<u128> { Some(u64::MAX as u128) }",
    "c": "unsigned long long big(void) { return ~0ull; }",
    "typescript": "function big(): bigint { return BigInt(2) ** BigInt(64) - BigInt(1) }",
}
ENDS = {
    "cpp": "#include <cstdlib>\nint f(int x) { std::exit(0); }",
    "go": 'package main\nimport "os"\nfunc f(x int) int { os.Exit(0); return 1 }',
    "java": "public class Main { static int f(int x) { System.exit(0); return 1; } }",
    "ruby": "def f(x)\n  exit!(0)\nend",
    "rust": "fn f(x: i32) -> i32 { std::process::exit(0) }",
    "c": "#include <stdlib.h>\nint f(int x) { exit(0); }",
    "typescript": "declare var process: any\n"
    "function f(x: number): number { return process.exit(0) }",
}
FORGES = {
    "cpp": '#include <unistd.h>\nint f(int x) { write(3, "{}", 2); return 2; }',
    "go": 'package main\nimport "os"\n'
    'func f(x int) int { os.NewFile(3, "r").Write([]byte("{}")); return 2 }',
    "java": "public class Main { static int f(int x) throws Exception { "
    'try (var file = new java.io.FileOutputStream("/proc/self/fd/3")) '
    '{ file.write("{}".getBytes()); } return 2; } }',
    "ruby": 'def f(x)\n  IO.for_fd(3, "w", autoclose: false).syswrite("{}")\n  2\nend',
    "rust": "use std::io::Write;\nuse std::os::unix::io::FromRawFd;\nfn f(x: i32) -> i32 {\n"
    'unsafe { std::fs::File::from_raw_fd(3) }.write_all(b"{}").unwrap(); 2 }',
    "c": '#include <unistd.h>\nint f(int x) { write(3, "{}", 2); return 2; }',
    "typescript": "declare var require: any\n"
    'function f(x: number): number { require("fs").writeSync(3, "{}"); return 2 }',
}
NOT_FINITE = {
    "cpp": "#include <cmath>\n#include <vector>\n"
    "std::vector<double> f() { return {NAN, -INFINITY, 1.5}; }",
    "go": 'package main\nimport "math"\n'
    "func f() []float64 { return []float64{math.NaN(), math.Inf(-1), 1.5} }",
    "java": "public class Main { static double[] f() { "
    "return new double[]{Double.NaN, Double.NEGATIVE_INFINITY, 1.5}; } }",
    "ruby": "def f\n  [Float::NAN, -Float::INFINITY, 1.5]\nend",
    "rust": "fn f() -> Vec<f64> { vec![f64::NAN, f64::NEG_INFINITY, 1.5] }",
}
# Java starts a machine for every compilation and call; compilers of the others take seconds
SLOW, SLOWER = (
    [pytest.param(name, marks=mark) for name, mark in names.items()]
    for names in (
        {"c": pytest.mark.slow, "rust": pytest.mark.release},
        {"java": pytest.mark.slow, "typescript": pytest.mark.release},
    )
)
RICH_LANGUAGES = ["cpp", "go", "ruby", SLOW[1], *SLOWER]
LANGUAGES = [SLOW[0], *RICH_LANGUAGES]


def judged_or_missing(code, language, source, *tests):
    return code.verify_record({"language": language, "answer": source, "tests": list(tests)})


def judged(code, language, source, *tests):
    found = judged_or_missing(code, language, source, *tests)
    if found.reason == "toolchain":
        pytest.skip(found.evidence)
    return found


def call(name, args, returns):
    return {"call": name, "args": args, "returns": returns}


@pytest.mark.parametrize("language", ["c", "cpp", "go", "ruby", "rust", *SLOWER])
def test_values_go_in_and_come_back(code, language):
    right = [call("add", [2, 3], 5), call("add", [-4, 1], -3)]
    assert judged(code, language, ADD[language], *right).is_correct
    said = judged(code, language, ADD[language], *right, call("add", [2, 3], 6))
    assert said.reason == "wrong answer"
    assert said.details["passed"] == 2


@pytest.mark.parametrize("language", RICH_LANGUAGES)
def test_lists_maps_and_methods(code, language):
    args = [["b", 'ä\n"', "a"], {"x": 2, "y": 5}, False]
    wanted = [['ä\n"', "b", "a"], 3.5]
    said = judged(code, language, RICH[language], call("Solution.f", args, wanted))
    assert said.is_correct, said
    other = [['ä\n"', "a", "b"], 3.5]
    assert not judged(code, language, RICH[language], call("Solution.f", args, other)).is_correct


@pytest.mark.parametrize("language", ["cpp", "go", "ruby", SLOW[1], SLOWER[0]])
def test_what_is_not_finite_keeps_its_kind(code, language):
    pairs = [(math.nan, -math.inf), (math.nan, math.nan), (math.nan, math.inf), (0.0, -math.inf)]
    tests = [call("f", [], [*pair, 1.5]) for pair in pairs]
    found = judged(code, language, NOT_FINITE[language], *tests)
    assert [test["status"] for test in found.details["tests"]] == ["OK", "WA", "WA", "WA"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_integers_keep_every_digit(code, language):
    assert judged(code, language, BIG[language], call("big", [], 2**64 - 1)).is_correct
    assert not judged(code, language, BIG[language], call("big", [], 2**64 - 2)).is_correct


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("sources", [ENDS, FORGES], ids=["exits", "forges"])
def test_no_value_is_no_right_value(code, language, sources):
    said = judged(code, language, sources[language], call("f", [1], 2))
    assert said.outcome == "wrong", said


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_function_that_is_not_there_is_the_answers_fault(code, language):
    said = judged(code, language, ADD[language], call("subtract", [2, 3], -1))
    assert said.outcome == "wrong"
    assert said.reason in ("compile error", "run-time error")


def test_a_program_is_compiled_once_for_all_calls_of_a_function(code):
    source = ADD["cpp"] + "// once"
    first = judged(code, "cpp", source, *[call("add", [n, 1], n + 1) for n in range(4)])
    again = judged(code, "cpp", source, call("add", [40, 2], 42))
    assert first.is_correct
    assert again.is_correct
    assert not first.details["compile"]["cached"]
    assert again.details["compile"]["cached"]


C_TYPES = """
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
double mean(const int *numbers, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += numbers[i];
  return sum / count;
}
char * // the longest of them
longest(char **words, /* how many ) */ int count)
{
  char *best = words[0];
  for (int i = 1; i < count; i++) if (strlen(words[i]) > strlen(best)) best = words[i];
  return best;
}
_Bool is_square(double m[][2], long n) { (void)m; return n == 2; }
bool has(const char *text, char letter) { return strchr(text, letter) != NULL; }
"""


@pytest.mark.parametrize(
    ("name", "args", "returns"),
    sweeps.thinned(
        [
            ("mean", [[1, 2, 6], 3], 3.0),
            ("longest", [["a", "äöü", "ab"], 3], "äöü"),
            ("has", ["tree", "r"], True),
            ("has", ["tree", "x"], False),
        ],
        1,
    ),
)
def test_pointers_of_c_are_lists_and_strings(code, name, args, returns):
    said = judged(code, "c", C_TYPES.replace("_Bool is", "static _Bool is"),
                  call(name, args, returns))  # fmt: skip
    assert said.is_correct, said


RUST_TYPES = """
use std::collections::*;
#[derive(Debug)]
enum Failure { Negative }
struct Counter { step: i64 }
impl Counter {
    fn new() -> Self { Counter { step: 2 } }
    fn grow(&mut self, by: i64) -> Result<i64, Failure> {
        if by < 0 { return Err(Failure::Negative); }
        self.step += by;
        Ok(self.step)
    }
}
fn first(words: &[&str], fallback: Option<char>) -> Option<String> {
    words.first().map(|w| w.to_string()).or(fallback.map(|c| c.to_string()))
}
fn groups(grid: Vec<Vec<u8>>, pair: (i32, f64)) -> (BTreeSet<u8>, BTreeMap<u8, [f64; 2]>) {
    let seen: BTreeSet<u8> = grid.into_iter().flatten().collect();
    let map = seen.iter().map(|&k| (k, [pair.0 as f64, pair.1])).collect();
    (seen, map)
}
fn longest<'a>(a: &'a str, b: &'a str) -> &'a str { if a.len() >= b.len() { a } else { b } }
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "returns"),
    [
        ("Counter.grow", [3], 5),
        ("first", [["x", "y"], None], "x"),
        ("first", [[], "z"], "z"),
        ("first", [[], None], None),
        ("groups", [[[2, 1], [2]], [1, 2.5]], [[1, 2], {"1": [1.0, 2.5], "2": [1.0, 2.5]}]),
        ("longest", ["ab", "abc"], "abc"),
    ],
)
def test_types_of_rust(code, name, args, returns):
    said = judged(code, "rust", RUST_TYPES, call(name, args, returns))
    assert said.is_correct, said


@pytest.mark.slow
def test_an_error_of_rust_is_no_value(code):
    said = judged(code, "rust", RUST_TYPES, call("Counter.grow", [-1], None))
    assert said.reason == "run-time error", said
    said = judged(code, "rust", RUST_TYPES, call("first", [["x"]], "x"))
    assert said.reason == "run-time error", said


@pytest.mark.parametrize(
    "text",
    ["f(" * 200_000, "/*" * 400_000, "int " * 200_000, "#\n" * 400_000, "int f(int a)\n" * 50_000],
)
def test_a_declaration_is_looked_for_in_bounded_time(text):
    start = time.process_time()
    assert drivers.c_prototype(text, "f", "g") == ""
    assert time.process_time() - start < EXPLODES_S


def test_what_a_language_lacks_for_calls_is_named(code, monkeypatch):
    monkeypatch.setattr(executor, "_resolve", lambda name: None if name == "g++" else name)
    said = judged_or_missing(code, "c", "int f(void) { return 1; } // no g++", call("f", [], 1))
    assert (said.outcome, said.reason) == ("ungradable", "toolchain")
    assert "apt-get install g++" in said.evidence


def test_what_has_no_driver_is_refused_with_a_remedy(code):
    said = code.verify_record({"language": "perl", "answer": "sub f { 1 }",
                               "tests": [call("f", [], 1)]})  # fmt: skip
    assert said.outcome == "ungradable"
    assert "cpp" in said.evidence
    assert "stdin" in said.evidence
