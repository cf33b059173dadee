"""The Metamath kernel against the reference program, on real databases and on mutated proofs."""

import pathlib
import random
import re
import shutil
import subprocess
import textwrap
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.formal import kernel

LIBRARY = pathlib.Path("/usr/share/metamath/databases")
PROVE_ID = "wph wph wi wps wps wi wph wps ax-1"
# ( ph -> ph ) from ax-1, ax-2 and modus ponens, as every textbook has it
IDENTITY = (
    "wph wph wph wi wi wph wph wi wph wph ax-1 wph wph wph wi wph wi wi wph wph wph wi wi wph "
    "wph wi wi wph wph wph wi ax-1 wph wph wph wi wph ax-2 ax-mp ax-mp"
)
needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason="no databases here: apt-get install metamath-databases"
)
needs_program = pytest.mark.skipif(
    shutil.which("metamath") is None, reason="no metamath here: apt-get install metamath"
)


def judge(answer, statement="|- ( ph -> ph )", **more):
    return get_verifier("metamath").verify_record(
        {"statement": statement, "answer": answer, **more}
    )


def test_a_proof_is_right_and_every_change_of_it_wrong():
    assert judge(IDENTITY).is_correct
    steps = IDENTITY.split()
    for place in range(len(steps)):
        for other in ("wps", "wi", "ax-1", "ax-3", "ax-mp", "nothing", None):
            changed = [*steps[:place], *([other] if other else []), *steps[place + 1 :]]
            if changed != steps:
                judged = judge(" ".join(changed))
                assert (judged.outcome, judged.reason) == ("wrong", "proof"), changed


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no answer"),
        ("?", "proof"),
        ("wph ?", "proof"),
        ("goal.of.this.problem", "proof"),
        ("wph goal.of.this.problem", "proof"),
        ("$. cheat $a |- ( ph -> ph ) $. x $p |- ( ph -> ph ) $= wph cheat", "format"),
        ("$[ /etc/passwd $]", "format"),
        ("$( comment $) " + IDENTITY, "format"),
        ("( ) A", "proof"),
        ("( ax-1", "proof"),
        ("( ax-1 ) Z", "proof"),
        ("( ax-1 ) UUUUUUUUUUUUUUUUUUUUUUUUUUU", "proof"),
        ("__import__('os').system('true')", "proof"),
        (IDENTITY + " wph", "proof"),
        (IDENTITY + " " + IDENTITY, "proof"),
        ("1" * 999_999, "proof"),
        ("\u0430x-1", "format"),
    ],
)
def test_cheats_and_junk_are_wrong(answer, reason):
    judged = judge(answer)
    assert (judged.outcome, judged.reason) == ("wrong", reason), judged


def test_a_proof_of_another_statement_is_wrong():
    assert judge(PROVE_ID, "|- ( ph -> ( ps -> ph ) )").outcome == "wrong"
    assert judge("wph wps ax-1", "|- ( ph -> ( ps -> ph ) )").is_correct
    assert judge("wph wps ax-1", "|- ( ps -> ( ph -> ps ) )").outcome == "wrong"
    assert judge("wps wph ax-1", "|- ( ps -> ( ph -> ps ) )").is_correct


def test_frames_give_hypotheses():
    frame = "h1 $e |- ph $. h2 $e |- ( ph -> ps ) $."
    assert judge("wph wps h1 h2 ax-mp", "|- ps", frame=frame).is_correct
    assert judge("wph wps h2 h1 ax-mp", "|- ps", frame=frame).outcome == "wrong"
    assert judge("wph wps min maj ax-mp", "|- ps", frame=frame).outcome == "wrong"


@pytest.mark.parametrize(
    "record",
    [
        {"answer": "x"},
        {"statement": "|- ph"},
        {"statement": 5, "answer": "x"},
        {"statement": "|- ( ph", "answer": "x", "database": "nowhere"},
        {"statement": "|- ( ph", "answer": "x", "database": ["propositional"]},
        {"statement": "|- nonsense", "answer": "x"},
        {"statement": "|- ph $= wph $.", "answer": "x"},
        {"statement": "|- ph", "answer": "x", "frame": "cheat $a |- ph $."},
        {"statement": "|- ph", "answer": "x", "frame": "$}"},
    ],
)
def test_what_is_wrong_with_the_problem_is_ungradable(record):
    assert get_verifier("metamath").verify_record(record).outcome == "ungradable"


def test_a_proof_that_grows_without_end_is_bounded():
    doubling = " ".join(["wph", *["wph wi"] * 20, "( "])
    assert judge(doubling).outcome == "wrong"
    letters = "A" + "AZ" + "".join("BBCZ" for _ in range(3))
    assert judge(f"( wi ax-1 ) {letters}").outcome == "wrong"
    grows = "( wi ) AABZ" + "".join(f"{letter}{letter}BZ" for letter in "CDEFGHIJKLMNOPQRST")
    assert judge(grows).reason == "cost"


DISTINCT = """
$c |- class set e. = $. $v x y A $. vx $f set x $. vy $f set y $. cA $f class A $.
${ $d x A $. ax-d $a |- x e. A $. $}
"""


@pytest.mark.parametrize(
    ("theorem", "holds"),
    [
        ("${ $d x A $. t $p |- x e. A $= vx cA ax-d $. $}", True),
        ("t $p |- x e. A $= vx cA ax-d $.", False),
        ("${ $d y A $. t $p |- x e. A $= vx cA ax-d $. $}", False),
        ("${ $d x y A $. t $p |- x e. A $= vx cA ax-d $. $}", True),
        ("${ $d y A $. t $p |- y e. A $= vy cA ax-d $. $}", True),
    ],
)
def test_distinct_variables(theorem, holds):
    assert accepts(DISTINCT + theorem) is holds


def accepts(text):
    """Whether our kernel reads a database and accepts all of its proofs."""
    database = kernel.Database()
    try:
        database.read(text, lambda theorem, active: kernel.verify(database, theorem, active))
    except kernel.MetamathError:
        return False
    return True


def reference_accepts(text, tmp_path):
    """The same from the reference program."""
    lines = textwrap.wrap(text, 72, break_long_words=False, break_on_hyphens=False)
    (tmp_path / "x.mm").write_text("\n".join(lines) + "\n")
    command = ["metamath", "read x.mm", "verify proof *", "exit"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode == 0 and not re.search(r"\?(Error|Warning|Fatal)", done.stdout)


@needs_library
@pytest.mark.parametrize(
    "name",
    ["demo0", "miu", "big-unifier", "peano", "hol", pytest.param("ql", marks=pytest.mark.release)],
)
def test_real_databases_verify(name):
    assert accepts((LIBRARY / f"{name}.mm").read_text())


@needs_library
@pytest.mark.release
def test_the_start_of_set_mm_verifies():
    text = (LIBRARY / "set.mm").read_text()[:3_000_000]
    text = text[: text.rindex("$)") + 2] if text.rindex("$(") < text.rindex("$)") else text
    text = text[: text.rindex("$(")]
    assert accepts(text)


@needs_library
@needs_program
def test_mutated_databases_are_judged_like_the_reference(tmp_path):
    rng = random.Random(7)
    text = re.sub(r"\$\(.*?\$\)", " ", (LIBRARY / "hol.mm").read_text(), flags=re.DOTALL)
    tokens = text.split()[:2600]
    while tokens[-1] != "$}":
        tokens.pop()
    assert accepts(" ".join(tokens))
    assert reference_accepts(" ".join(tokens), tmp_path)
    refused = 0
    for _ in range(60):
        changed = list(tokens)
        place = rng.randrange(400, len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[place] = rng.choice(tokens[400:])
        elif kind == 1:
            del changed[place]
        elif kind == 2:
            changed.insert(place, rng.choice(tokens[400:]))
        else:
            other = rng.randrange(400, len(changed))
            changed[place], changed[other] = changed[other], changed[place]
        mutated = " ".join(changed)
        ours = accepts(mutated)
        refused += not ours
        assert ours == reference_accepts(mutated, tmp_path), (
            place,
            kind,
            changed[place - 9 : place + 9],
        )
    assert refused > 20


def test_library_theorems_may_not_prove_themselves(tmp_path):
    text = resources.files("loong_jax.verifiers.formal").joinpath("propositional.mm").read_text()
    library = tmp_path / "library.mm"
    library.write_text(f"{text}\nid $p |- ( ph -> ph ) $= {IDENTITY} $.\n")
    verifier = get_verifier("metamath", databases={"library": library})
    record = {"database": "library", "statement": "|- ( ph -> ph )"}
    assert verifier.verify_record(record | {"answer": "wph id"}).is_correct
    judged = verifier.verify_record(record | {"answer": "wph id", "before": "id"})
    assert (judged.outcome, judged.reason) == ("wrong", "forbidden")
    assert verifier.verify_record(record | {"answer": IDENTITY, "before": "id"}).is_correct
    judged = verifier.verify_record(record | {"answer": IDENTITY, "before": "nowhere"})
    assert judged.outcome == "ungradable"


def test_a_database_that_does_not_verify_is_not_used(tmp_path):
    text = resources.files("loong_jax.verifiers.formal").joinpath("propositional.mm").read_text()
    broken = tmp_path / "broken.mm"
    broken.write_text(f"{text}\nbad $p |- ph $= wph $.\n")
    verifier = get_verifier("metamath", databases={"broken": broken, "absent": tmp_path / "no"})
    for name in ("broken", "absent"):
        record = {"database": name, "statement": "|- ph", "answer": "wph bad"}
        judged = verifier.verify_record(record)
        assert (judged.outcome, judged.reason) == ("ungradable", "database")


TOKENS = st.sampled_from([*"()ABCTUYZ?", "wph", "wi", "wn", "ax-1", "ax-2", "ax-mp", "$", "$="])


@given(st.lists(st.one_of(TOKENS, st.text(max_size=3)), max_size=25).map(" ".join))
def test_any_answer_gets_one_verdict(answer):
    judged = judge(answer)
    assert judged.outcome == "wrong"
    again = judge(answer)
    assert (again.outcome, again.reason, again.evidence) == (
        judged.outcome, judged.reason, judged.evidence,
    )  # fmt: skip


@given(st.text(alphabet="$(){}aefpvcd.=[ph wi-|\n", max_size=80))
def test_any_database_is_read_or_refused(text):
    assert accepts(text) in (True, False)
