"""A policy version on its way into many processes.

Two phases. First every host is sent the arrays in chunks, and prepares: all chunks are there, each
array has its checksum, the manifest is that of the versions before. Only when all have prepared
are they told to commit; until then nobody can be assigned the version, and one that refuses makes
all forget it. Every message may come twice, and may be sent again where its answer is late.
"""

import concurrent.futures
import contextlib
import itertools
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from loong_jax.errors import LoongError
from loong_jax.models.parameters import Weights
from loong_jax.rollout.versions import Manifest, VersionError, VersionStore


class Begin(NamedTuple):
    publication: int  # counts attempts to publish, over all versions of a run
    version: int
    manifest: Manifest
    checksums: tuple[int, ...]  # CRC-32 of every leaf
    skeleton: Any  # the tree of the weights with the index of each leaf in its place
    sums: tuple[int, ...] | None = None  # of the driver's store


class Chunk(NamedTuple):
    """Bytes of one leaf from `offset` on; the bytes travel beside it."""

    publication: int
    leaf: int
    offset: int


class Prepare(NamedTuple):
    publication: int


class Commit(NamedTuple):
    publication: int


class Rollback(NamedTuple):
    publication: int


Message = Begin | Chunk | Prepare | Commit | Rollback


class Reply(NamedTuple):
    """`refusal` is empty where it was done; `leaf` names the array that a refusal is about."""

    refusal: str = ""
    leaf: str = ""


DONE = Reply()


class Staging:
    """The host's part. One publication is staged at a time; a newer one takes its place."""

    def __init__(self, store: VersionStore):
        self._store = store
        self._begun: Begin | None = None
        self._leaves: list[np.ndarray] = []  # uint8
        self._received: list[dict[int, int]] = []  # by leaf: offset, bytes
        self._sums: list[tuple[int, int]] = []  # by leaf: bytes from its beginning, their CRC-32
        self._last_committed = -1
        self._closed = -1  # this publication and those before are over
        self._is_prepared = False

    def handle(self, message: Message, data: np.ndarray | None = None) -> Reply:
        """Carries out one message; `data` is uint8, the bytes of a chunk."""
        match message:
            case Begin():
                return self._begin(message)
            case Chunk():
                assert data is not None
                return self._chunk(message, data)
            case Prepare(publication):
                return self._prepare(publication)
            case Commit(publication):
                return self._commit(publication)
            case Rollback(publication):
                self._drop(publication)
                return DONE

    def _begin(self, begun: Begin) -> Reply:
        if begun.publication <= self._closed or begun == self._begun:
            return self._stale(begun.publication) if begun != self._begun else DONE
        if self._begun is not None and begun.publication < self._begun.publication:
            return Reply(f"publication {self._begun.publication} has begun since")
        self._begun, self._is_prepared = begun, False
        sizes = [_num_bytes(leaf.shape, leaf.dtype) for leaf in begun.manifest]
        self._leaves = [np.empty(size, np.uint8) for size in sizes]
        self._received = [{} for _ in sizes]
        self._sums = [(0, 0) for _ in sizes]
        return DONE

    def _chunk(self, chunk: Chunk, data: np.ndarray) -> Reply:
        if self._begun is None or chunk.publication != self._begun.publication:
            return self._stale(chunk.publication)
        whole = self._leaves[chunk.leaf]
        if chunk.offset + len(data) > len(whole):
            return Reply(
                f"{len(data)} bytes at {chunk.offset} of {len(whole)}", self._name(chunk.leaf)
            )
        if not self._is_prepared:  # a late second copy changes nothing that was checked
            place = whole[chunk.offset : chunk.offset + len(data)]
            end, checksum = self._sums[chunk.leaf]
            if chunk.offset == end:  # summed as they come, so that to prepare takes no time
                self._sums[chunk.leaf] = end + len(data), zlib.crc32(data.data, checksum)
            elif chunk.offset < end and not np.array_equal(place, data):
                self._sums[chunk.leaf] = 0, 0
            place[:] = data
            self._received[chunk.leaf][chunk.offset] = len(data)
        return DONE

    def _prepare(self, publication: int) -> Reply:
        begun = self._begun
        if begun is None or publication != begun.publication:
            return self._stale(publication)
        if self._is_prepared:
            return DONE
        try:
            self._store.check(begun.version, begun.manifest)
        except VersionError as error:
            return Reply(str(error))
        for index, (whole, checksum) in enumerate(zip(self._leaves, begun.checksums, strict=True)):
            there = sum(self._received[index].values())
            if there != len(whole):
                return Reply(f"{there} of {len(whole)} bytes came", self._name(index))
            end, found = self._sums[index]
            if zlib.crc32(whole[end:].data, found) != checksum:
                return Reply("its checksum is another one", self._name(index))
        self._is_prepared = True
        return DONE

    def _commit(self, publication: int) -> Reply:
        if publication == self._last_committed:
            return DONE
        begun = self._begun
        if begun is None or publication != begun.publication or not self._is_prepared:
            return Reply(f"publication {publication} is not prepared here")
        arrays = [
            whole.view(jax.numpy.dtype(leaf.dtype)).reshape(leaf.shape)
            for whole, leaf in zip(self._leaves, begun.manifest, strict=True)
        ]
        weights = jax.tree.map(lambda index: arrays[index], begun.skeleton)
        self._store.put(begun.version, weights, timeout_s=0.0, checksums=begun.sums)
        self._last_committed = publication
        self._drop(publication)
        return DONE

    def _drop(self, publication: int) -> None:
        self._closed = max(self._closed, publication)
        if self._begun is not None and self._begun.publication <= self._closed:
            self._begun, self._leaves, self._received = None, [], []
            self._is_prepared = False

    def _stale(self, publication: int) -> Reply:
        if publication == self._last_committed:
            return DONE
        return Reply(f"publication {publication} is not under way here")

    def _name(self, index: int) -> str:
        assert self._begun is not None
        return self._begun.manifest[index].name


def checksums_of(weights: Any) -> tuple[int, ...]:
    """CRC-32 of the bytes of every array, in host memory."""
    return tuple(
        zlib.crc32(np.ascontiguousarray(np.asarray(a)).reshape(-1).view(np.uint8).data)
        for a in jax.tree.leaves(weights)
    )


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
        """The reply to come. Resolves to HostLost where the host has ended; never resolves where
        message or answer are lost. `data` is what `share` made of the bytes.
        """
        ...

    def lose(self, why: str) -> None:
        """Ends a host that cannot be relied on, so that it serves nothing any more."""
        ...


class OutgoingVersion(NamedTuple):
    """A version ready to be sent."""

    version: int
    weights: Weights
    manifest: Manifest
    checksums: tuple[int, ...]  # CRC-32 of every leaf
    sums: tuple[int, ...] | None = None  # of the store that it comes from


SUMMED_BYTES_PER_S = 100 * 2**20  # by a slow host that has to sum a whole version again


class _Sent(NamedTuple):
    member: Member
    message: Message
    data: Any
    answer: Future[Reply]
    timeout_s: float


class Publisher:
    """Sends versions to hosts, one publication at a time; may be used from any thread.

    At most `window` chunks of `chunk_bytes` are on their way to a host, so commands pass between
    them. An answer that takes longer than `answer_timeout_s` is asked for again, `tries` times in
    all, and the first answer counts; to prepare there is time to sum all bytes besides. A host
    that stays silent is lost, and the others go on.
    """

    def __init__(
        self,
        *,
        share: Callable[[np.ndarray], Any] = lambda data: data,
        chunk_bytes: int = 8 * 2**20,
        window: int = 4,
        answer_timeout_s: float = 30.0,
        tries: int = 3,
    ):
        """`share` makes bytes into what `Member.ask` takes, once for all hosts."""
        assert min(chunk_bytes, window, tries) >= 1, (chunk_bytes, window, tries)
        self._share, self._chunk_bytes, self._window = share, chunk_bytes, window
        self._answer_timeout_s, self._tries = answer_timeout_s, tries
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.num_bytes = 0  # of arrays, each once however many hosts had it

    def publish(self, outgoing: OutgoingVersion, members: Sequence[Member]) -> list[Member]:
        """Returns the members that serve the version now; the others are lost.

        Raises PublishRefused where one refused it twice, and then all serve what they served.
        """
        with self._lock:
            alive = list(members)
            for is_last in (False, True):
                try:
                    return self._attempt(next(self._numbers), outgoing, alive)
                except _Refused as refused:
                    alive = refused.alive
                    if is_last:
                        raise PublishRefused(refused.describe(outgoing.version)) from None
        raise AssertionError("unreachable")

    def _attempt(
        self, number: int, outgoing: OutgoingVersion, members: list[Member]
    ) -> list[Member]:
        indices = itertools.count()
        skeleton = jax.tree.map(lambda _: next(indices), outgoing.weights)
        begin = Begin(
            number, outgoing.version, outgoing.manifest, outgoing.checksums, skeleton, outgoing.sums
        )
        alive = self._all(number, begin, members)
        on_their_way: deque[list[_Sent]] = deque()
        for chunk, data in self._chunks(number, outgoing.weights):
            shared = self._share(data)
            self.num_bytes += len(data)
            on_their_way.append([self._send(member, chunk, shared) for member in alive])
            if len(on_their_way) > self._window:
                alive = self._settle(number, on_their_way.popleft(), alive)
        while on_their_way:
            alive = self._settle(number, on_their_way.popleft(), alive)
        num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(outgoing.weights))
        summing_s = num_bytes / SUMMED_BYTES_PER_S
        alive = self._all(number, Prepare(number), alive, extra_s=summing_s)
        # From here on the version is published: who cannot commit is lost.
        sent = [self._send(member, Commit(number), None) for member in alive]
        for one in sent:
            reply = self._answer(one)
            if reply is None or reply.refusal:
                alive.remove(one.member)
            if reply is not None and reply.refusal:
                one.member.lose(f"it prepared version {outgoing.version} and then: {reply.refusal}")
        return alive

    def _chunks(self, number: int, weights: Weights) -> Iterator[tuple[Chunk, np.ndarray]]:
        """Leaf by leaf, so that one leaf at a time is in host memory."""
        for index, leaf in enumerate(jax.tree.leaves(weights)):
            data = np.ascontiguousarray(np.asarray(leaf)).reshape(-1).view(np.uint8)
            for offset in range(0, len(data), self._chunk_bytes):
                chunk = Chunk(number, index, offset)
                yield chunk, data[offset : offset + self._chunk_bytes]

    def _all(
        self, number: int, message: Message, members: list[Member], extra_s: float = 0.0
    ) -> list[Member]:
        """Asks all of them; returns those that are left."""
        sent = [self._send(member, message, None, extra_s) for member in members]
        return self._settle(number, sent, members)

    def _send(self, member: Member, message: Message, data: Any, extra_s: float = 0.0) -> _Sent:
        timeout_s = self._answer_timeout_s + extra_s
        return _Sent(member, message, data, member.ask(message, data), timeout_s)

    def _settle(self, number: int, sent: list[_Sent], alive: list[Member]) -> list[Member]:
        """Waits for the answers; raises `_Refused`, after a rollback, where one is a refusal."""
        left, refusal = list(alive), None
        for one in sent:
            if one.member not in left:
                continue
            reply = self._answer(one)
            if reply is None:
                left.remove(one.member)
            elif reply.refusal:
                refusal = refusal or (one.member.name, reply)
        if refusal is None:
            return left
        back = [self._send(member, Rollback(number), None) for member in left]
        left = [one.member for one in back if self._answer(one) is not None]
        raise _Refused(*refusal, left)

    def _answer(self, sent: _Sent) -> Reply | None:
        """None where the host is lost."""
        answers = [sent.answer]
        try:
            for again in range(self._tries):
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    return answers[-1].result(sent.timeout_s)
                if (late := next((one for one in answers if one.done()), None)) is not None:
                    return late.result()
                if again + 1 < self._tries:
                    answers.append(sent.member.ask(sent.message, sent.data))
        except HostLost:
            return None
        waited_s = sent.timeout_s * self._tries
        sent.member.lose(f"no answer to {type(sent.message).__name__} within {waited_s:.0f} s")
        return None


class _Refused(Exception):
    def __init__(self, host: str, reply: Reply, alive: list[Member]):
        self.host, self.reply, self.alive = host, reply, alive

    def describe(self, version: int) -> str:
        about = f" {self.reply.leaf}:" if self.reply.leaf else ""
        return (
            f"version {version} was not prepared by {self.host}:{about} {self.reply.refusal}. No "
            "host serves it, and all serve what they served before; look at that host's memory "
            "and network, or leave it out."
        )
