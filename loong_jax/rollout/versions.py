"""Policy versions: immutable weights by number, alive while somebody holds them.

At most `max_staleness + 1` versions serve while one more is staged, so publishing cannot fill the
memory. Holders acquire a version by name and release it; a retired version goes when its last
holder does. All methods may be called from any thread; only `put` may wait, for a retired version
that its last holder is about to release.
"""

import dataclasses
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from loong_jax import checksums as sums
from loong_jax.errors import LoongError
from loong_jax.models.parameters import Weights


class VersionError(LoongError):
    """A version is unknown, of another shape, damaged, or one too many."""


class Leaf(NamedTuple):
    """One array of a manifest."""

    name: str
    shape: tuple[int, ...]
    dtype: str


Manifest = tuple[Leaf, ...]


@dataclasses.dataclass
class _Entry:
    weights: Weights
    checksums: tuple[int, ...]  # of every leaf, in the order of the manifest
    holders: Counter
    shardings: list[Any]  # of the leaves on device; None for one that came as a NumPy array

    def put_on_device(self, load: Callable[[Weights], Weights]) -> None:
        if None in self.shardings:
            self.weights = load(self.weights)
            return
        leaves, tree = jax.tree.flatten(self.weights)
        placed = [
            jax.device_put(leaf, sharding) if isinstance(leaf, np.ndarray) else leaf
            for leaf, sharding in zip(leaves, self.shardings, strict=True)
        ]
        self.weights = jax.tree.unflatten(tree, placed)

    def put_on_host(self) -> None:
        """Leaf by leaf; each leaves the device as soon as nobody else has it."""
        leaves, tree = jax.tree.flatten(self.weights)
        self.shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
        self.weights = jax.tree.unflatten(tree, [np.array(leaf) for leaf in leaves])


@runtime_checkable
class Follower(Protocol):
    """Somebody who keeps copies of the versions elsewhere."""

    def on_put(self, version: int) -> None:
        """Called in the thread of `put`, which returns after it. An error undoes the put."""
        ...

    def on_retire(self, version: int) -> None: ...


class VersionStore:
    """Weights of the living policy versions. Whoever puts arrays in gives them away for good: an
    array that is donated or written to afterwards breaks every engine that serves it.

    With `offload`, an older version that nobody holds waits in host memory, as NumPy arrays, and
    is put back where it was on device when it is acquired; one that came as NumPy arrays is put on
    device by `load`, once for all its holders, when it is first acquired.
    """

    def __init__(
        self,
        max_staleness: int,
        *,
        offload: bool = False,
        load: Callable[[Weights], Weights] = jax.device_put,
    ):
        self.capacity = max_staleness + 2  # serving, and one staged
        self._offload, self._load = offload, load
        self.num_offloads = 0
        self._lock = threading.Condition()  # notified when a version goes
        self._entries: dict[int, _Entry] = {}
        self._retired: set[int] = set()
        self.manifest: Manifest | None = None  # of every version; None before the first
        self._followers: list[Follower] = []

    def follow(self, follower: "Follower") -> None:
        """`follower` hears of every version from now on."""
        self._followers.append(follower)

    def check(self, version: int, manifest: Manifest) -> None:
        """Raises VersionError where such a version could never be put."""
        with self._lock:
            if self.manifest is not None and manifest != self.manifest:
                raise VersionError(
                    f"version {version} differs from the manifest in "
                    f"{_first_difference(manifest, self.manifest)}. All versions of a run have "
                    "the same arrays; start another store for another model."
                )
            if version in self._entries:
                raise VersionError(f"version {version} is there already. Count versions up.")

    def put(
        self,
        version: int,
        weights: Weights,
        timeout_s: float = 30.0,
        *,
        checksums: tuple[int, ...] | None = None,
    ) -> None:
        """Stores a new version. Raises VersionError where the store may not take it.

        In a full store it waits up to `timeout_s` for a retired version to be released, if there
        is one. `checksums` are those of the leaves, where they have just been compared.
        """
        manifest = manifest_of(weights)
        if checksums is None:
            checksums = sums.of_all(jax.tree.leaves(weights))
        with self._lock:
            self.check(version, manifest)
            deadline_s = time.monotonic() + timeout_s
            while self._is_full() and self._retired and time.monotonic() < deadline_s:
                self._lock.wait(max(0.0, deadline_s - time.monotonic()))
            if self._is_full():
                raise VersionError(
                    f"version {version} would be number {len(self._entries) + 1}, but at most "
                    f"{self.capacity} may live: max_staleness + 1 serving and one staged. Holders: "
                    f"{self.holders()}. Release or retire one, or raise max_staleness."
                )
            self.manifest = manifest
            shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(weights)]
            self._entries[version] = _Entry(weights, checksums, Counter(), shardings)
            for older in set(self._entries) - {version}:
                self._rest(older)
        try:
            for follower in self._followers:
                follower.on_put(version)
        except BaseException:
            with self._lock:
                del self._entries[version]
                self._lock.notify_all()
            raise

    def get(self, version: int) -> Weights:
        with self._lock:
            return self._entry(version).weights

    def acquire(self, version: int, holder: str) -> Weights:
        """The weights; they live at least until `holder` has released them as often as acquired."""
        with self._lock:
            entry = self._entry(version)
            if self._offload and not entry.holders:
                entry.put_on_device(self._load)
            entry.holders[holder] += 1
            return entry.weights

    def release(self, version: int, holder: str) -> None:
        with self._lock:
            entry = self._entry(version)
            assert entry.holders[holder], f"{holder} does not hold version {version}"
            entry.holders[holder] -= 1
            if not entry.holders[holder]:
                del entry.holders[holder]
            if not self._drop_if_free(version):
                self._rest(version)

    def retire(self, version: int) -> bool:
        """No new work asks for `version`: it goes now, or with its last holder. True if gone."""
        with self._lock:
            if version not in self._entries:
                return True
            self._retired.add(version)
            is_gone = self._drop_if_free(version)
        for follower in self._followers:
            follower.on_retire(version)
        return is_gone

    def numbers(self) -> tuple[int, ...]:
        """Living versions that were not retired, rising."""
        with self._lock:
            return tuple(sorted(set(self._entries) - self._retired))

    def checksum(self, version: int) -> str:
        """Checksum of the weights as they were put, in hexadecimal."""
        with self._lock:
            return _combine(self._entry(version).checksums)

    def leaf_checksums(self, version: int) -> tuple[int, ...]:
        """The checksum of every leaf as it was put, in the order of the manifest."""
        with self._lock:
            return self._entry(version).checksums

    def holders(self) -> dict[int, dict[str, int]]:
        """How often each holder has what lives, by version."""
        with self._lock:
            return {v: dict(self._entries[v].holders) for v in sorted(self._entries)}

    def _rest(self, version: int) -> None:
        """A version that nobody holds leaves the device, unless it is the newest."""
        entry = self._entries[version]
        if not self._offload or entry.holders or version == max(self._entries):
            return
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(entry.weights)):
            entry.put_on_host()
            self.num_offloads += 1

    def _is_full(self) -> bool:
        return len(self._entries) >= self.capacity

    def _entry(self, version: int) -> _Entry:
        if version not in self._entries:
            raise VersionError(
                f"version {version} is not in the store, which holds {sorted(self._entries)}. It "
                "was never put, or nobody held it when it was retired."
            )
        return self._entries[version]

    def _drop_if_free(self, version: int) -> bool:
        if version in self._retired and not self._entries[version].holders:
            del self._entries[version]
            self._retired.discard(version)
            self._lock.notify_all()
            return True
        return False


def manifest_of(weights: Weights) -> Manifest:
    leaves = jax.tree_util.tree_leaves_with_path(weights)
    return tuple(
        Leaf(jax.tree_util.keystr(path, simple=True, separator="/"), tuple(a.shape), str(a.dtype))
        for path, a in leaves
    )


def _combine(checksums: tuple[int, ...]) -> str:
    return f"{zlib.crc32(np.array(checksums, np.uint32).tobytes()):08x}"


def _first_difference(one: Manifest, other: Manifest) -> str:
    for a, b in zip(one, other, strict=False):
        if a != b:
            return f"{a.name} {a.shape} {a.dtype} (expected {b.name} {b.shape} {b.dtype})"
    return f"the number of arrays, {len(one)} (expected {len(other)})"
