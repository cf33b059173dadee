"""A verifier whose response says what goes wrong with it: for tests of pools."""

import os
import signal
import time

from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict


class StrangeVerifier:
    """`hang`, `raise`, `crash` and `print` do so; any other response is right if it is the gold.

    `crash once PATH` kills its process unless the file PATH exists, which it makes first.
    """

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        match response_text.split():
            case ["hang"]:
                while True:
                    time.sleep(1)
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case ["raise"]:
                raise RuntimeError("strange")
            case ["print"]:
                print("not a frame", flush=True)
            case ["crash"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["crash", "once", path]:
                if not os.path.exists(path):
                    open(path, "x").close()
                    os.kill(os.getpid(), signal.SIGKILL)
        if response_text == problem.gold:
            return verdict.correct(str(os.getpid()))
        return verdict.wrong("value")

    def close(self) -> None:
        pass
