"""Starting Ray, or connecting to it: late starts, addresses that are wrong, one Ray a process."""

import socket
import subprocess
import types

import pytest

from loong_jax.errors import ConfigError
from loong_jax.verifiers import ray_pool

SLOW = "The current node timed out during startup. This could happen because ..."


class BusyRay:
    """As the module, on a machine where the first starts fail."""

    def __init__(self, *errors):
        self.errors, self.num_starts, self.num_shutdowns = list(errors), 0, 0

    def is_initialized(self):
        return False

    def init(self, **options):
        self.num_starts += 1
        if self.errors:
            raise Exception(self.errors.pop(0))

    def shutdown(self):
        self.num_shutdowns += 1


@pytest.mark.parametrize(
    ("errors", "starts", "raised"),
    [
        ((), 1, None),
        ((SLOW, SLOW), 3, None),
        ((SLOW,) * 9, 4, "ray start --head"),
        (("no",), 1, "no"),
    ],
)
def test_a_late_start_is_tried_again(monkeypatch, errors, starts, raised):
    busy = BusyRay(*errors)
    monkeypatch.setattr(ray_pool, "ray", busy)
    if raised is None:
        assert ray_pool.start_ray()
    else:
        with pytest.raises(Exception, match=raised):
            ray_pool.start_ray()
    assert (busy.num_starts, busy.num_shutdowns) == (starts, starts - 1)


class KnownRay(BusyRay):
    """Connected to a cluster, or not yet."""

    def __init__(self, connected=None):
        super().__init__()
        self.connected = connected

    def is_initialized(self):
        return self.connected is not None

    def init(self, address="", **options):
        self.connected = address

    def get_runtime_context(self):
        return types.SimpleNamespace(gcs_address=self.connected)


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_address_and_the_environment_name_a_cluster(monkeypatch, listening):
    for given, named in ((listening, None), (None, listening), (f"ray://{listening}", "wrong:1")):
        known = KnownRay()
        monkeypatch.setattr(ray_pool, "ray", known)
        monkeypatch.setenv("RAY_ADDRESS", named or "")
        assert ray_pool.start_ray(given)
        assert known.connected == (given or named)


def test_nothing_answers_at_a_wrong_address(monkeypatch, listening):
    monkeypatch.setattr(ray_pool, "ray", KnownRay())
    port = int(listening.rpartition(":")[2])
    for address in (f"127.0.0.2:{port}", "nowhere.invalid:6379"):
        with pytest.raises(ConfigError, match=f"no Ray answers at address '{address}'"):
            ray_pool.start_ray(address)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.2:{port}")
    with pytest.raises(ConfigError, match="RAY_ADDRESS"):
        ray_pool.start_ray()


def test_a_process_has_one_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_pool, "ray", KnownRay("127.0.0.1:6379"))
    for address in (None, "auto", "local", "127.0.0.1:6379", "localhost:6379"):
        assert not ray_pool.start_ray(address)
    for address in ("127.0.0.1:6380", "10.0.0.9:6379", "ray://10.0.0.9:10001"):
        with pytest.raises(ConfigError, match=r"is connected to 127.0.0.1:6379"):
            ray_pool.start_ray(address)


def test_a_start_that_failed_leaves_no_process(monkeypatch):
    """Nor does it end others of this process: of an earlier start, or none of Ray's."""
    home = ray_pool._HOME.decode()

    def sleeper(name):
        return subprocess.Popen([name, "3600"], executable="/bin/sleep")

    kept = [sleeper(f"{home}/gcs_server"), sleeper("other")]
    left = []

    class Slow(BusyRay):
        def init(self, **options):
            if self.errors:
                left.append(sleeper(f"{home}/gcs_server"))
            super().init(**options)

    monkeypatch.setattr(ray_pool, "ray", Slow(SLOW, SLOW))
    try:
        assert ray_pool.start_ray()
        assert [one.poll() is not None for one in left] == [True, True]
        assert [one.poll() for one in kept] == [None, None]
    finally:
        for one in (*kept, *left):
            one.kill()
            one.wait()
