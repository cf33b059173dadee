"""Cases on which each registered verifier is tried before it may reward, by its name.

A verifier without an entry is not admitted: whoever adds one adds its cases.
"""

from collections.abc import Callable, Sequence
from typing import Any

from loong_jax.environments.problem import Problem
from loong_jax.errors import VerifierError
from loong_jax.verifiers.admission import Case, as_it_is, environment_cases, in_box, in_tags


def _problem(verifier: str, number: int, prompt: str, **fields: Any) -> Problem:
    return Problem(
        uid=f"admission-{verifier}/1/{number}",
        domain="stem",
        environment="admission",
        level=1,
        seed=number,
        canonical=f"admission:{verifier}:{number}",
        prompt=prompt,
        verifier=verifier,
        **fields,
    )


def _environment() -> list[Case]:
    from loong_jax import environments

    names = list(environments.WORKED)
    return [c for n in names for c in environment_cases(environments.get_environment(n), (1, 5), 1)]


def _math() -> list[Case]:
    golds = {
        "What is 20/35 in lowest terms?": "\\frac{4}{7}",
        "Expand (x+1)(x-3).": "x^2-2x-3",
        "For which x is x^2 <= 9?": "[-3,3]",
        "How many primes are below 20?": "8",
        "Which day follows Monday?": "Tuesday",
    }
    return [
        Case(problem=_problem("math", n, question, gold=gold), answer=gold, render=in_box)
        for n, (question, gold) in enumerate(golds.items())
    ]


def _loongbench() -> list[Case]:
    rows = [
        ("advanced_math", "What is 20/35 in lowest terms?", "4/7", ()),
        ("advanced_physics", "What is the pressure?", "51.3 atm", ("52.3 atm", "51.3 bar")),
        ("graph_discrete_math", "List the edges.", "[(1, 2), (1, 3)]",
         ("[(1, 2)]", "[(1, 2), (1, 4)]")),
        ("logic", "Who owns what?", "{'Pet': ['dog', 'rat']}", ("{'Pet': ['rat', 'dog']}",)),
        ("finance", "What is the fair value?", "11.538349821344024",
         ("11.6", "-11.538349821344024")),
        ("programming", "What does it print?", "1 2\n3", ("1 2 3", "1 2\n4")),
    ]  # fmt: skip
    return [
        Case(
            problem=_problem("loongbench", n, question, gold=gold, arguments={"domain": domain}),
            answer=gold,
            perturbed=wrong or None,
            render=as_it_is if domain in ("logic", "programming") else in_box,
        )
        for n, (domain, question, gold, wrong) in enumerate(rows)
    ]


def _judge() -> list[Case]:
    golds = {
        "What is 13/4 as a decimal?": "3.25",
        "How many primes are below 20?": "8",
        "Which day follows Monday?": "Tuesday",
    }
    return [
        Case(problem=_problem("judge", n, question, gold=gold), answer=gold)
        for n, (question, gold) in enumerate(golds.items())
    ]


def _constraints() -> list[Case]:
    """Exact ones: a looser form admits many answers, which is why form never rewards alone."""
    calls = '<longcat_tool_call>{{"name": "add", "arguments": {{"a": {}}}}}</longcat_tool_call>'
    tools = {"add": {"properties": {"a": {"type": "integer", "enum": [7]}}, "required": ["a"]}}
    listed = [
        ("Call add with 7.", [{"kind": "tool_calls", "tools": tools, "exactly": 1},
                              {"kind": "count", "of": "characters", "exactly": 77}],
         calls.format(7), (calls.format(8), calls.format('"7"'), calls.format("7, \"b\": 1"))),
        ("Three words, the last of them done, all in lower case.",
         [{"kind": "count", "of": "words", "exactly": 3}, {"kind": "ends_with", "text": "done"},
          {"kind": "starts_with", "text": "well"}, {"kind": "case", "is": "lower"},
          {"kind": "count", "of": "characters", "exactly": 15}],
         "well, then done", ("well, then Done", "well done", "well, now then done")),
        ("A JSON object with the key total.", [{"kind": "json", "keys": ["total"]}],
         '{"total": 5}', ('{"totals": 5}', '{"total": 5', '["total"]')),
    ]  # fmt: skip
    return [
        Case(
            problem=_problem("constraints", n, question, arguments={"constraints": constraints}),
            answer=answer,
            perturbed=wrong,
        )
        for n, (question, constraints, answer, wrong) in enumerate(listed)
    ]


def _code() -> list[Case]:
    tests = [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "-4 9\n", "stdout": "5\n"}]
    calls = [{"function": "f", "args": [[3, 1, 2]], "expected": [1, 2, 3]}]
    listed = [
        ("Print the sum of two numbers.", tests, "print(sum(map(int, input().split())))",
         ("print(5, end='!')", "print('2 3')", "a, b = input().split()\nprint(a + b)")),
        ("Sort a list: f(values).", calls, "def f(values):\n    return sorted(values)",
         ("def f(values):\n    return values", "def f(values):\n    return [1, 2]",
          "def g(values):\n    return sorted(values)")),
    ]  # fmt: skip
    return [
        Case(
            problem=_problem(
                "code",
                n,
                question,
                arguments={"language": "python", "tests": given, "time_limit_s": 1.0},
            ),
            answer=answer,
            perturbed=wrong,
        )
        for n, (question, given, answer, wrong) in enumerate(listed)
    ]


def _logic() -> list[Case]:
    from loong_jax import environments

    found = [environments.get_environment(name) for name in ("sudoku", "knights_and_knaves")]
    return [case for one in found for case in environment_cases(one, (2,), 1)]


def _coq() -> list[Case]:
    listed = [
        ("Theorem t : forall n : nat, n + 0 = n.",
         "Proof. intro n. induction n. reflexivity. simpl. rewrite IHn. reflexivity. Qed."),
        ("Theorem t : forall P Q : Prop, P /\\ Q -> Q.",
         "Proof. intros P Q H. destruct H. exact H0. Qed."),
    ]  # fmt: skip
    return _proofs("coq", listed, ("Proof. Admitted.", "Proof. Abort.", "Proof. intros. Qed."))


def _lean() -> list[Case]:
    listed = [("theorem t : 2 + 2 = 4", "by rfl"), ("theorem t (p : Prop) (h : p) : p", "h")]
    return _proofs("lean", listed, ("by sorry", "sorry", "by native_decide", ""))


def _metamath() -> list[Case]:
    listed = [
        ("|- ( ph -> ( ps -> ph ) )", "wph wps ax-1"),
        ("|- ( ps -> ( ph -> ps ) )", "wps wph ax-1"),
    ]
    return _proofs("metamath", listed, ("?", "wph wps ax-2", "wph", "goal.of.this.problem"))


def _proofs(name: str, listed: Sequence[tuple[str, str]], wrong: tuple[str, ...]) -> list[Case]:
    return [
        Case(
            problem=_problem(name, n, "Prove it.", arguments={"statement": statement}),
            answer=proof,
            perturbed=wrong,
        )
        for n, (statement, proof) in enumerate(listed)
    ]


def _resyn() -> list[Case]:
    """One module that compares with its own solution, one that checks by its rule alone."""
    head = "def levels(): return [1, 2, 3]\ndef generate(level, seed): return [level, seed]\n"
    turned = head + (
        "def question(state): return f'Turn around {state}.'\n"
        "def reference(state): return str(state)[::-1]\n"
        "def reward(state, answer): return answer.strip() == reference(state)\n"
    )
    factors = head + (
        "import re\n"
        "def question(state): return f'Write {state} as a*b, both above 1.'\n"
        "def reference(state): return '7*13'\n"
        "def reward(state, answer):\n"
        "    match = re.fullmatch('([0-9]{1,9})[*]([0-9]{1,9})', answer.strip(), re.ASCII)\n"
        "    factors = [int(part) for part in match.groups()] if match else [1]\n"
        "    return min(factors) > 1 and factors[0] * factors[1] == state\n"
    )
    listed = [(turned, 4817, "7184"), (turned, 30526, "62503"), (factors, 91, "7*13")]
    return [
        Case(
            problem=_problem("resyn", n, f"{state}?", arguments={"module": text, "state": state}),
            answer=answer,
            render=in_tags,
        )
        for n, (text, state, answer) in enumerate(listed)
    ]


CASES: dict[str, Callable[[], Sequence[Case]]] = {
    "code": _code,
    "constraints": _constraints,
    "coq": _coq,
    "environment": _environment,
    "judge": _judge,
    "lean": _lean,
    "logic": _logic,
    "loongbench": _loongbench,
    "math": _math,
    "metamath": _metamath,
    "resyn": _resyn,
}


def cases_of(name: str) -> Sequence[Case]:
    """Cases of a registered verifier; VerifierError where nobody wrote any."""
    if name not in CASES:
        raise VerifierError(
            f"verifier {name!r} is not admitted: it has no cases. Write some in "
            "admission_cases.CASES."
        )
    return CASES[name]()
