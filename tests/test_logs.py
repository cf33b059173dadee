"""Log lines of every command: where they go, and from which level on."""

import io
import logging
import sys
import types

import pytest
from rich.console import Console

from loong_jax import cli, process
from loong_jax.report.progress import Progress


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.delenv(process.LOG_VARIABLE, raising=False)
    ours, root = logging.getLogger("loong_jax"), logging.getLogger()
    level, handlers = ours.level, list(root.handlers)
    yield
    ours.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def says(monkeypatch):
    """A command that logs a line of each level."""

    def run(arguments):
        for level in process.LOG_LEVELS:
            logging.getLogger("loong_jax.orchestrator.loop").log(
                getattr(logging, level.upper()), "a line of %s", level
            )
        logging.getLogger("orbax").info("chatter of a library")
        return len(arguments)

    monkeypatch.setitem(sys.modules, "loong_jax.said", types.SimpleNamespace(run=run))
    command = cli.Command(usage="say", summary="", run="said:run")
    monkeypatch.setitem(cli.COMMANDS, "say", command)


@pytest.mark.parametrize(
    ("words", "variable", "shown"),
    [
        (["say"], None, process.LOG_LEVELS[1:]),
        (["say", "--log-level", "debug"], "error", process.LOG_LEVELS),
        (["--log-level=error", "say"], None, process.LOG_LEVELS[3:]),
        (["say"], "warning", process.LOG_LEVELS[2:]),
    ],
)
def test_every_command_logs_and_the_level_is_chosen(
    says, monkeypatch, capsys, words, variable, shown
):
    if variable:
        monkeypatch.setenv(process.LOG_VARIABLE, variable)
    assert cli.main(words) == 0  # the level is no argument of the command
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == list(shown)
    assert all(" a line of " in line for line in lines)


def test_what_follows_two_dashes_is_left_alone_and_another_level_refused(says, capsys):
    assert cli.main(["say", "--", "--log-level", "debug"]) == 3
    assert cli.main(["say", "--log-level", "loud"]) == 2
    assert "'loud' is no level of logging" in capsys.readouterr().err


def test_a_line_goes_above_the_live_display(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    process.start_logging()
    with Progress(["rl"], console=Console(file=screen, force_terminal=True, width=80)) as progress:
        progress.start("rl", num_steps=2)
        logging.getLogger("loong_jax").info("the problems are solved")
        assert sys.stderr is not screen  # the display has put itself there
    written = screen.getvalue()
    assert written.count("the problems are solved") == 1
    line = next(part for part in written.split("\n") if "the problems are solved" in part)
    assert "step 0/2" not in line
