"""Progress off and on a terminal."""

import io

import pytest
from rich.console import Console

from loong_jax.report.progress import Progress, duration


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_off_a_terminal_one_line_per_interval():
    clock, stream = Clock(), io.StringIO()
    with Progress(
        ["sft", "rl_stem"],
        console=Console(file=stream, force_terminal=False),
        line_every_s=10,
        clock=clock,
    ) as progress:
        progress.start("sft", num_steps=100)
        for step in range(1, 101):
            clock.now += 1
            progress.step(step, {"loss": 2.0 / step, "tokens_per_s": 10_000})
        progress.note("evaluating")
        clock.now += 5
        progress.finish("sft", "pass@1 stem 31 %")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + 10 + 2
    assert lines[0] == "[   0 s] sft: starts, 100 steps"
    assert lines[1] == "[  10 s] sft: step 10/100  loss 0.200  tok/s 10,000  1:30 left"
    assert lines[-1] == "[  1:45] sft: done in 1:45, pass@1 stem 31 %"
    assert "\x1b" not in stream.getvalue()


@pytest.fixture
def lines():
    """A stage that is under way, its clock and the lines it has printed."""
    clock, stream = Clock(), io.StringIO()
    console = Console(file=stream, force_terminal=False)
    progress = Progress(["rl"], console=console, line_every_s=0, clock=clock)
    progress.start("rl", num_steps=30, first_step=10)
    return progress, clock, lambda: stream.getvalue().splitlines()


def test_time_left_is_the_pace_of_the_last_steps_and_not_said_too_early(lines):
    progress, clock, printed = lines
    for step in (11, 12, 13):
        clock.now += 600 if step == 11 else 2  # the first one compiles
        progress.step(step, {})
        assert "left" not in printed()[-1]
    clock.now += 2
    progress.step(14, {})
    assert printed()[-1].endswith("step 14/30  32 s left")


def test_a_remark_does_not_outlive_what_it_is_about(lines):
    progress, _, printed = lines
    progress.note("tries the answers of the file")
    progress.step(11, {"rewards/all_groups_mean": 0.5, "staleness/mean": None})
    assert printed()[-1].endswith("step 11/30  reward 0.50")
    progress.note("tries the answers of the file")
    progress.start("rl", num_steps=30)
    assert "tries" not in str(progress._stages["rl"].describe())


def test_a_long_wait_for_a_step_is_said_now_and_then(lines):
    progress, clock, printed = lines
    before = len(printed())
    for number in range(1, 91):
        clock.now += 1
        progress.meanwhile(f"{number} groups judged since")
    assert [line.split("rl: ")[1] for line in printed()[before:]] == [
        "30 groups judged since",
        "60 groups judged since",
        "90 groups judged since",
    ]


def test_on_a_terminal_a_table_with_every_stage():
    clock, stream = Clock(), io.StringIO()
    with Progress(
        ["sft", "rl_stem", "fused"], console=Console(file=stream, force_terminal=True), clock=clock
    ) as p:
        p.finish("sft")
        p.start("rl_stem", num_steps=5)
        p.step(2, {"rewards/all_groups_mean": 0.25, "staleness/mean": 1.5})
    text = stream.getvalue()
    for piece in ("sft", "rl_stem", "fused", "step 2/5", "reward 0.25", "staleness 1.5"):
        assert piece in text


@pytest.mark.parametrize(("seconds", "text"), [(4.2, "4 s"), (125, "2:05"), (3725, "1:02:05")])
def test_duration(seconds, text):
    assert duration(seconds) == text
