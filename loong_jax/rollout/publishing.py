"""A policy version on its way into many processes.

Two phases. First every host is sent the arrays in chunks, and prepares: each array has its
checksum, the manifest is that of the versions before. Only when all have prepared are they told to
commit; until then nobody can be assigned the version, and one that refuses makes all forget it.
Messages arrive once and in order, or the host ends: see `hosts.Host`.
"""

import concurrent.futures
import itertools
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from loong_jax.errors import LoongError
from loong_jax.models.parameters import Weights
from loong_jax.rollout.versions import Manifest, VersionError, VersionStore


class Begin(NamedTuple):
    """A version that is to be sent."""

    version: int
    manifest: Manifest
    checksums: tuple[int, ...]  # CRC-32 of every leaf
    skeleton: Any  # the tree of the weights with the index of each leaf in its place
    sums: tuple[int, ...] | None = None  # of the driver's store

    @classmethod
    def of(
        cls,
        version: int,
        weights: Weights,
        manifest: Manifest,
        sums: tuple[int, ...] | None = None,
    ) -> "Begin":
        indices = itertools.count()
        skeleton = jax.tree.map(lambda _: next(indices), weights)
        return cls(version, manifest, checksums_of(weights), skeleton, sums)


class Chunk(NamedTuple):
    """Bytes of one leaf from `offset` on; the bytes travel beside it."""

    leaf: int
    offset: int


Message = Begin | Chunk | Literal["prepare", "commit", "rollback"]
Reply = str  # why not; empty where it was done


class Staging:
    """The host's part. One version is staged at a time; another one takes its place."""

    def __init__(self, store: VersionStore):
        self._store = store
        self._begun: Begin | None = None
        self._leaves: list[np.ndarray] = []  # uint8
        self._checksums: list[int] = []  # of what has come of each: to prepare takes no time

    def handle(self, message: Message, data: np.ndarray | None = None) -> Reply:
        """Carries out one message; `data` is uint8, the bytes of a chunk."""
        match message:
            case Begin():
                self._begun = message
                sizes = [_num_bytes(leaf.shape, leaf.dtype) for leaf in message.manifest]
                self._leaves = [np.empty(size, np.uint8) for size in sizes]
                self._checksums = [0] * len(sizes)
            case Chunk(leaf, offset):
                assert data is not None
                self._leaves[leaf][offset : offset + len(data)] = data
                self._checksums[leaf] = zlib.crc32(data.data, self._checksums[leaf])
            case "prepare":
                return self._prepare()
            case "commit":
                self._commit()
            case "rollback":
                self._begun, self._leaves = None, []
        return ""

    def _prepare(self) -> Reply:
        assert self._begun is not None
        manifest = self._begun.manifest
        try:
            self._store.check(self._begun.version, manifest)
        except VersionError as error:
            return str(error)
        for leaf, found, sent in zip(manifest, self._checksums, self._begun.checksums, strict=True):
            if found != sent:
                return f"{leaf.name}: its checksum is another one"
        return ""

    def _commit(self) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None
        arrays = [
            whole.view(jax.numpy.dtype(leaf.dtype)).reshape(leaf.shape)
            for whole, leaf in zip(self._leaves, begun.manifest, strict=True)
        ]
        self._leaves = []
        weights = jax.tree.map(lambda index: arrays[index], begun.skeleton)
        self._store.put(begun.version, weights, timeout_s=0.0, checksums=begun.sums)


def checksums_of(weights: Any) -> tuple[int, ...]:
    """CRC-32 of the bytes of every array, in host memory."""
    return tuple(zlib.crc32(_bytes_of(a).data) for a in jax.tree.leaves(weights))


def _bytes_of(array: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)


def _num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * jax.numpy.dtype(dtype).itemsize


class HostLost(LoongError):
    """A host has ended, or does not answer."""


class PublishRefused(LoongError):
    """A host did not prepare a version; every host is as before."""


@runtime_checkable
class Member(Protocol):
    """A host that takes part."""

    name: str

    def ask(self, message: Message, data: Any = None) -> Future[Reply]:
        """The reply to come. Resolves to HostLost where the host has ended. `data` is what `share`
        made of the bytes.
        """
        ...

    def lose(self, why: str) -> None:
        """Ends a host that cannot be relied on, so that it serves nothing any more."""
        ...


class Publisher:
    """Sends versions to hosts, one at a time; may be used from any thread.

    At most `window` chunks of `chunk_bytes` are on their way to a host, so commands pass between
    them. A host that is silent for `answer_timeout_s` is lost, and the others go on.
    """

    def __init__(
        self,
        *,
        share: Callable[[np.ndarray], Any] = lambda data: data,
        chunk_bytes: int = 8 * 2**20,
        window: int = 4,
        answer_timeout_s: float = 90.0,
    ):
        """`share` makes bytes into what `Member.ask` takes, once for all hosts."""
        assert min(chunk_bytes, window) >= 1, (chunk_bytes, window)
        self._share, self._chunk_bytes, self._window = share, chunk_bytes, window
        self._answer_timeout_s = answer_timeout_s
        self._lock = threading.Lock()
        self.num_bytes = 0  # of arrays, each once however many hosts had it

    def publish(self, begin: Begin, weights: Weights, members: Sequence[Member]) -> list[Member]:
        """Returns the members that serve the version now; the others are lost.

        Raises PublishRefused where one refused it twice, and then all serve what they served.
        """
        with self._lock:
            alive, refusal = list(members), ""
            for _ in range(2):
                alive, refusal = self._attempt(begin, weights, alive)
                if not refusal:
                    return alive
        raise PublishRefused(
            f"version {begin.version} was not prepared by {refusal}. No host serves it, and all "
            "serve what they served before; look at that host's memory and network, or leave it "
            "out."
        )

    def _attempt(
        self, begin: Begin, weights: Weights, members: list[Member]
    ) -> tuple[list[Member], Reply]:
        """The members that are left, and why the version is not published, if it is not."""
        alive, _ = self._tell(begin, members)
        on_their_way: deque[list[tuple[Member, Future[Reply]]]] = deque()
        for chunk, data in self._chunks(weights):
            shared = self._share(data)
            self.num_bytes += len(data)
            on_their_way.append([(member, member.ask(chunk, shared)) for member in alive])
            if len(on_their_way) > self._window:
                alive, _ = self._heard(on_their_way.popleft())
        while on_their_way:
            alive, _ = self._heard(on_their_way.popleft())
        alive, refusal = self._tell("prepare", alive)
        alive, _ = self._tell("rollback" if refusal else "commit", alive)
        return alive, refusal

    def _chunks(self, weights: Weights) -> Iterator[tuple[Chunk, np.ndarray]]:
        """Leaf by leaf, so that one leaf at a time is in host memory."""
        for index, leaf in enumerate(jax.tree.leaves(weights)):
            data = _bytes_of(leaf)
            for offset in range(0, len(data), self._chunk_bytes):
                yield Chunk(index, offset), data[offset : offset + self._chunk_bytes]

    def _tell(self, message: Message, members: list[Member]) -> tuple[list[Member], Reply]:
        return self._heard([(member, member.ask(message)) for member in members])

    def _heard(self, asked: list[tuple[Member, Future[Reply]]]) -> tuple[list[Member], Reply]:
        """The members that have answered, and the first refusal with its host's name."""
        alive, refusal = [], ""
        for member, answer in asked:
            try:
                reply = answer.result(self._answer_timeout_s)
            except HostLost:
                continue
            except concurrent.futures.TimeoutError:
                member.lose(f"no answer in {self._answer_timeout_s:.0f} s of publishing")
                continue
            alive.append(member)
            refusal = refusal or (reply and f"{member.name}: {reply}")
        return alive, refusal
