"""The journal: every change of a run on disk before its effect, to go on after a kill at any time.

A new segment begins with each snapshot for a checkpoint, which holds the segment's number:

    journal/3.log      one line a change: CRC-32 of the rest in hexadecimal, then JSON
    journal/3.arrays   groups of rollouts, one after the other; lines name place and CRC-32

A line is one `write`, so what a killed process wrote is there; a line cut short, or one whose
arrays are, ends what is read, and the file is cut there. Both files reach the disk itself (fsync)
at every trained step and checkpoint, and else once in `fsync_every_s`: a machine that loses power
costs at most what was generated in that time. Arrays are flushed before the lines that name them.
"""

import dataclasses
import json
import mmap
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.data import disk
from loong_jax.errors import CheckpointError
from loong_jax.orchestrator import changes
from loong_jax.orchestrator.changes import Change, Place
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.orchestrator.protocols import Disposition, Grade
from loong_jax.problems.verdict import Verdict
from loong_jax.rollout import records
from loong_jax.rollout.records import Group

FORMAT_VERSION = 1
_KINDS: dict[str, type] = {kind.__name__: kind for kind in Change.__args__}


class Journal:
    """One writer. First `reopen`; then `keep`, `write` and `rotate`."""

    def __init__(
        self,
        directory: Path | str,
        *,
        fsync_every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.directory = Path(directory)
        self.num_bytes_cut = 0  # damaged or torn, when it was reopened
        self._fsync_every_s = fsync_every_s
        self._clock = clock
        self._segment = -1
        self._log = self._arrays = -1  # file descriptors
        self._arrays_end = 0
        self._synced_s = clock()
        self._maps: dict[int, mmap.mmap] = {}

    # ---- opening --------------------------------------------------------------------------------

    @property
    def next_segment(self) -> int:
        """The number of the segment that `rotate` begins, for the snapshot taken just before."""
        return self._segment + 1

    def reopen(self, first: int) -> list[Change]:
        """All changes from segment `first` on (0: of the whole run), to be written on.

        Where that segment is missing, the journal begins anew there: the run goes on from the
        checkpoint alone.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        found: list[Change] = []
        last, goes_on = first, first in self.segments()
        for number in self.segments():
            if number >= first and goes_on:
                read, goes_on = self._read(number)
                found += read
                last = number
            elif number >= first:
                self._delete(number)
        self._begin(last)
        return found

    def segments(self) -> list[int]:
        """Numbers of those that are there, rising."""
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    def _read(self, number: int) -> tuple[list[Change], bool]:
        """The changes of one segment, which is cut after the last good one; was it whole?"""
        content = self._path(number, "log").read_bytes()
        found: list[Change] = []
        end = 0
        for line in content.splitlines(keepends=True):
            record = _decode_line(line)
            if record is None:
                break
            if end == 0:
                if record != (expected := _header(number)):
                    raise CheckpointError(
                        f"a journal that begins with {record}, and not with {expected}. Resume "
                        "with the release that wrote it."
                    )
            else:
                change = from_json(record)
                if None in map(self._view, _places(change)):
                    break
                found.append(change)
            end += len(line)
        if end < len(content):
            self.num_bytes_cut += len(content) - end
            os.truncate(self._path(number, "log"), end)
        return found, end == len(content)

    def _begin(self, number: int) -> None:
        self._close_files()
        self._segment = number
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with disk.writing(self.directory):
            self._log = os.open(self._path(number, "log"), flags, 0o644)
            self._arrays = os.open(self._path(number, "arrays"), flags, 0o644)
        self._arrays_end = os.fstat(self._arrays).st_size
        if os.fstat(self._log).st_size == 0:
            _write(self._log, _encode_line(_header(number)), self._path(number, "log"))
        self.sync()

    # ---- writing --------------------------------------------------------------------------------

    def write(self, change: Change) -> None:
        """Appends one change. It survives this process once this returns."""
        line = _encode_line(to_json(change))
        _write(self._log, line, self._path(self._segment, "log"))
        is_milestone = isinstance(change, changes.Trained)
        if is_milestone or self._clock() - self._synced_s >= self._fsync_every_s:
            self.sync()

    def keep(self, group: Group) -> Place:
        """Appends the arrays of a group; returns segment, first byte, length and CRC-32."""
        blob = records.encode(records.group_to_plain(group))
        padding = -self._arrays_end % records.ALIGNMENT
        first = self._arrays_end + padding
        _write(self._arrays, bytes(padding) + blob, self._path(self._segment, "arrays"))
        self._arrays_end = first + len(blob)
        return (self._segment, first, len(blob), zlib.crc32(blob))

    def load(self, place: Place) -> Group:
        """The group at `place`; its arrays stay in the file until they are read.

        Raises CheckpointError where the bytes are not those that were written.
        """
        blob = self._view(place)
        if blob is None:
            raise CheckpointError(
                f"the group at {place} of {self.directory} is damaged. Delete that directory to "
                "go on from the last checkpoint alone."
            )
        return records.group_from_plain(records.decode(blob))

    def rotate(self) -> None:
        """Begins a new segment, which goes on from the snapshot just taken."""
        self.sync()
        self._begin(self.next_segment)

    def forget_before(self, segment: int) -> None:
        """Deletes earlier segments: no checkpoint that could still be needed goes back so far."""
        for number in self.segments():
            if number < min(segment, self._segment):
                self._delete(number)

    def sync(self) -> None:
        """Everything is on the disk itself when this returns."""
        with disk.writing(self.directory):
            os.fsync(self._arrays)
            os.fsync(self._log)
        self._synced_s = self._clock()

    def close(self) -> None:
        if self._log >= 0:
            self.sync()
        self._close_files()
        self._maps.clear()

    # ---- parts ----------------------------------------------------------------------------------

    def _close_files(self) -> None:
        for descriptor in (self._log, self._arrays):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._arrays = -1

    def _path(self, number: int, kind: str) -> Path:
        return self.directory / f"{number}.{kind}"

    def _delete(self, number: int) -> None:
        self._maps.pop(number, None)
        for kind in ("log", "arrays"):
            self._path(number, kind).unlink(missing_ok=True)

    def _view(self, place: Place) -> memoryview | None:
        """The bytes at `place`, unless they are short or damaged."""
        number, first, length, checksum = place
        path = self._path(number, "arrays")
        if not path.exists() or path.stat().st_size < first + length:
            return None
        known = self._maps.get(number)
        if known is None or len(known) < first + length:
            with path.open("rb") as file:
                known = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps[number] = known
        view = memoryview(known)[first : first + length]
        return view if zlib.crc32(view) == checksum else None


# ---- going on from it ---------------------------------------------------------------------------


Judged = tuple[tuple[Group, Disposition], ...]


class LostStep(NamedTuple):
    """A step that was trained after the last checkpoint: its weights are gone, its groups not."""

    step: int
    groups: tuple[Group, ...]
    reread: dict[str, int]  # see `rereads`
    counts: dict[str, int]  # of tickets, when it ended
    num_open: int
    judged: Judged  # groups that had their verdicts since the step before


class Replayed(NamedTuple):
    """The content of a journal since the checkpoint."""

    num_changes: int
    steps: tuple[LostStep, ...]
    checksums: dict[int, str]  # of the weights by version, where known
    judged: Judged  # since the last of the steps


def replay(
    ledger: Ledger, journal: Journal | None, found: Sequence[Change], grade: Grade
) -> Replayed:
    """Enters what was committed after the checkpoint that the ledger was restored from.

    `grade` rewards a group with verdicts: it returns the group and its disposition.
    """
    steps: list[LostStep] = []
    checksums: dict[int, str] = {}
    since: list[tuple[Group, Disposition]] = []
    for change in found:
        trained, num_reread, groups = ledger.lease + ledger.reread, len(ledger.reread), ()
        match change:
            case changes.Generated() | changes.Scored() if journal is not None:
                groups = tuple(journal.load(place) for place in _places(change))
            case changes.Verified(number, disposition, _, verdicts) if verdicts:
                rollouts = zip(ledger.group(number).rollouts, verdicts, strict=True)
                judged = tuple(dataclasses.replace(r, verdict=Verdict(**v)) for r, v in rollouts)
                groups = (grade(ledger.group(number).replace_rollouts(judged))[0],)
                since.append((groups[0], disposition))
        ledger.enter(change, groups)
        match change:
            case changes.Trained(step):
                again, num_open = rereads(ledger, num_reread), len(ledger.tickets)
                counts, judged = ledger.counts(), tuple(since)
                steps.append(LostStep(step, trained, again, counts, num_open, judged))
                since.clear()
            case changes.Published(version, _, checksum):
                checksums[version] = checksum
    return Replayed(len(found), tuple(steps), checksums, tuple(since))


def rereads(ledger: Ledger, num_groups: int) -> dict[str, int]:
    """Groups that the last step trained on again, `num_groups`, and all so far; {} where none ever
    is.
    """
    if not ledger.reuse.share:
        return {}
    return {"reuse/groups": num_groups, "reuse/total": ledger.trained.num_reads}


# ---- bytes --------------------------------------------------------------------------------------


def _places(change: Change) -> tuple[Place, ...]:
    match change:
        case changes.Generated(_, _, place) if place is not None:
            return (place,)
        case changes.Scored(_, places):
            return places
    return ()


def _write(descriptor: int, content: bytes, path: Path) -> None:
    """Writes everything: one system call takes at most 2 GiB. DiskFullError where there is no room:
    a part that was written is cut off when the journal is opened again.
    """
    view = memoryview(content)
    with disk.writing(path):
        while view:
            view = view[os.write(descriptor, view) :]


def _encode_line(record: Any) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _decode_line(line: bytes) -> Any | None:
    body = line[9:-1]
    if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(body):
        return None
    return json.loads(body)


def _header(number: int) -> list[Any]:
    return ["journal", {"format_version": FORMAT_VERSION, "segment": number}]


def to_json(change: Change) -> list[Any]:
    """The name of the record and its fields."""
    return [type(change).__name__, *change]


def from_json(line: list[Any]) -> Change:
    """Inverse of `to_json`; CheckpointError for what no release of this format wrote."""
    name, *fields = line
    if name not in _KINDS:
        raise CheckpointError(
            f"a journal record of kind {name!r}; this release knows {sorted(_KINDS)}. Resume with "
            "the release that began the run."
        )
    return _KINDS[name](*map(_tuples, fields))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
