"""External storage of large payloads: a codec stores the payloads with a driver and sends references instead.

Histories, a server's limits and replays are designed for small payloads. A driver stores a payload above a threshold when
the payload leaves, and fetches it when its reference arrives. The format of references is Temporal's own
(`ExternalStorageReference`), so that programs with Temporal's SDKs recognize them. `FolderStorage` is a driver for a
directory that all machines can read. Drivers for network storage have the same three methods.

Invariants: a payload is stored durably before its reference leaves. Storing the same payload twice has no effect and returns
the same claim, so that a retried task leaves no garbage. Fetched data is checked against the claim.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import time as wall_time
from typing import TypeVar

import msgspec

from hourglass._loops import submit
from hourglass.converter._codec import Codec, decoded, encoded
from hourglass.converter._context import SerializationContext, in_context, wants_context
from hourglass.converter._data import Payload
from hourglass.errors import DecodeError, UsageError

T = TypeVar("T")

_MESSAGE = b"temporal.api.sdk.v1.ExternalStorageReference"
_OLD_ENCODING = "json/external-storage-reference"


@dataclass(frozen=True)
class StorageDriverClaim:
    """The driver's own data for finding a stored payload, recorded in the history. It must not contain secrets."""

    claim_data: Mapping[str, str]


@dataclass(frozen=True)
class StorageDriverStoreContext:
    """The context of a store request."""


@dataclass(frozen=True)
class StorageDriverSelectContext:
    """The context of the selection of a driver for a payload."""


@dataclass(frozen=True)
class StorageDriverRetrieveContext:
    """The context of a retrieve request."""


class StorageDriver(ABC):
    """Base class of drivers that store payloads. The methods are plain functions, called in several threads simultaneously,
    or `async def`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The driver's name in references. It must never change, and must be unique within a storage."""

    @abstractmethod
    def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload], /
    ) -> Sequence[StorageDriverClaim] | Awaitable[Sequence[StorageDriverClaim]]:
        """Store payloads durably, and return a claim for each, in order. Storing the same payload twice returns the same
        claim."""

    @abstractmethod
    def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim], /
    ) -> Sequence[Payload] | Awaitable[Sequence[Payload]]:
        """Return the payloads for these claims, in order."""


Selector = Callable[[StorageDriverSelectContext, Payload], StorageDriver | None]


@dataclass(frozen=True)
class ExternalStorage:
    """A codec that stores large payloads externally:
    `Client.connect(codec=ExternalStorage([FolderStorage("/mnt/payloads")]))`.

    A payload of `payload_size_threshold` bytes or more is stored by the only driver, or by the driver that `driver_selector`
    returns. If the selector returns None, the payload is sent unchanged. With a `codec`, payloads are encoded first, so that
    stored data is encrypted like sent data.
    """

    drivers: Sequence[StorageDriver]
    driver_selector: Selector | None = None
    payload_size_threshold: int = 256 * 1024
    codec: Codec | None = None
    _named: dict[str, StorageDriver] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.drivers:
            raise UsageError("an ExternalStorage needs at least one driver")
        if self.payload_size_threshold < 0:
            raise UsageError(
                f"payload_size_threshold must be a number of bytes of at least 0, not {self.payload_size_threshold}"
            )
        if len(self.drivers) > 1 and self.driver_selector is None:
            raise UsageError("an ExternalStorage with several drivers needs a driver_selector")
        for driver in self.drivers:
            if not isinstance(driver, StorageDriver):
                raise UsageError(f"a driver must be a StorageDriver, not {type(driver).__name__}")
            if self._named.setdefault(driver.name, driver) is not driver:
                raise UsageError(
                    f"two drivers have the name {driver.name!r}: each driver needs a unique name"
                )

    @property
    def wants_context(self) -> bool:
        """Whether the wrapped codec depends on the serialization context."""
        return self.codec is not None and wants_context(self.codec)

    def with_context(self, context: SerializationContext) -> ExternalStorage:
        """Return a copy with the codec bound to the context."""
        return self if self.codec is None else replace(self, codec=in_context(self.codec, context))

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Store large payloads and return references to them. Other payloads are returned unchanged."""
        through = list(payloads if self.codec is None else encoded(self.codec, payloads))
        groups: dict[str, list[int]] = {}
        for at, payload in enumerate(through):
            driver = self._select(payload)
            if driver is not None:
                groups.setdefault(driver.name, []).append(at)
        for name, places in groups.items():
            stored = self._named[name].store(StorageDriverStoreContext(), [through[at] for at in places])
            for at, claim in zip(places, _matching(_settled(stored), places, name), strict=True):
                through[at] = _reference(name, claim)
        return through

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Fetch the payloads of references. Other payloads are not fetched."""
        through = list(payloads)
        groups: dict[str, list[tuple[int, StorageDriverClaim]]] = {}
        for at, payload in enumerate(through):
            if (reference := _claim(payload)) is not None:
                groups.setdefault(reference[0], []).append((at, reference[1]))
        for name, claims in groups.items():
            driver = self._named.get(name)
            if driver is None:
                names = ", ".join(sorted(self._named))
                raise DecodeError(
                    f"a payload needs the storage driver {name[:80]!r}; configured drivers: {names}"
                )
            fetched = driver.retrieve(StorageDriverRetrieveContext(), [claim for _, claim in claims])
            for (at, _), payload in zip(claims, _matching(_settled(fetched), claims, name), strict=True):
                through[at] = payload
        return through if self.codec is None else decoded(self.codec, through)

    def _select(self, payload: Payload) -> StorageDriver | None:
        if len(payload.data) < self.payload_size_threshold:
            return None
        if self.driver_selector is None:
            return self.drivers[0]
        driver = self.driver_selector(StorageDriverSelectContext(), payload)
        if driver is not None and self._named.get(driver.name) is not driver:
            raise UsageError(
                f"driver_selector returned the driver {driver.name!r}, which is not one of the configured drivers"
            )
        return driver


def _settled(result: T | Awaitable[T]) -> T:
    return submit(result, "storage").result() if isinstance(result, Awaitable) else result


def _matching(results: Sequence[T], requested: Sequence[object], name: str) -> Sequence[T]:
    if len(results) != len(requested):
        raise DecodeError(
            f"the storage driver {name!r} returned {len(results)} results for {len(requested)} payloads"
        )
    return results


def _reference(name: str, claim: StorageDriverClaim) -> Payload:
    document = {"claimData": dict(claim.claim_data), "driverName": name}
    return Payload(msgspec.json.encode(document, order="sorted"), "json/protobuf", {"messageType": _MESSAGE})


class _Reference(msgspec.Struct, rename="camel"):
    driver_name: str = ""
    claim_data: dict[str, str] = {}


class _OldClaim(msgspec.Struct):
    claim_data: dict[str, str] = {}


class _OldReference(msgspec.Struct):
    driver_name: str = ""
    driver_claim: _OldClaim = msgspec.field(default_factory=_OldClaim)


def _claim(payload: Payload) -> tuple[str, StorageDriverClaim] | None:
    """Return the driver name and the claim of a payload that is a reference, in the current or an earlier format; otherwise
    None.
    """
    try:
        if payload.encoding == _OLD_ENCODING:
            old = msgspec.json.decode(payload.data, type=_OldReference)
            return old.driver_name, StorageDriverClaim(old.driver_claim.claim_data)
        if payload.encoding == "json/protobuf" and (payload.metadata or {}).get("messageType") == _MESSAGE:
            new = msgspec.json.decode(payload.data, type=_Reference)
            return new.driver_name, StorageDriverClaim(new.claim_data)
    except msgspec.MsgspecError as error:
        raise DecodeError("a reference to a stored payload cannot be read") from error
    return None


_KEY = re.compile(r"[0-9a-f]{64}")


def stored_form(payload: Payload) -> tuple[str, bytes]:
    """Return a payload's key, derived from its contents, and its bytes. For use in drivers."""
    data = msgspec.msgpack.encode(payload)
    return hashlib.sha256(data).hexdigest(), data


def from_stored(key: str, data: bytes) -> Payload:
    """Return the payload stored as these bytes. Raise `DecodeError` if the bytes do not match the key."""
    if hashlib.sha256(data).hexdigest() != key:
        raise DecodeError(f"the payload stored as {key[:12]}… was changed or truncated")
    return msgspec.msgpack.decode(data, type=Payload)


def key_of(claim: StorageDriverClaim) -> str:
    """Return the key of a claim. The key comes from the network and becomes part of a path, so only keys in our format are
    accepted.
    """
    key = claim.claim_data.get("key", "")
    if not _KEY.fullmatch(key):
        raise DecodeError("the claim of a stored payload has no valid key")
    return key


def _make_private(folder: Path) -> None:
    # `Path.mkdir` applies its mode only to the last directory
    """Create a directory and its missing parents, accessible only to this user."""
    if folder.is_dir():
        return
    _make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


class FolderStorage(StorageDriver):
    """A driver that stores payloads as files in a directory. All processes that use the payloads need access to this
    directory: they share a disk or run on one machine.

    Each file is named after its contents, so a payload is stored once, however often it is sent. Files are never removed
    automatically, because the result of a closed workflow can be requested as long as the history is kept. `remove_unused`
    removes files by age.

    Only this user may read and change the created files and directories, regardless of the umask. The mode of an existing
    directory is not changed.
    """

    def __init__(self, folder: str | Path, *, name: str = "folder") -> None:
        self._folder = Path(folder)
        self._name = name

    @property
    def name(self) -> str:
        """The driver's name in references."""
        return self._name

    def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload], /
    ) -> Sequence[StorageDriverClaim]:
        """Write each payload to a file, durably."""
        return [self._store(payload) for payload in payloads]

    def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim], /
    ) -> Sequence[Payload]:
        """Read the payloads from their files."""
        return [self._retrieve(key_of(claim)) for claim in claims]

    def remove_unused(self, older_than: timedelta) -> int:
        """Remove the files that were last stored longer ago than this time. Return the number of removed files.

        Choose a time longer than the namespace's retention plus the longest workflow, because the driver does not know the
        references to its files.
        """
        limit, removed = wall_time() - older_than.total_seconds(), 0
        for file in self._folder.glob("??/*"):
            if _KEY.fullmatch(file.name) and file.stat().st_mtime < limit:
                file.unlink(missing_ok=True)
                removed += 1
        return removed

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _store(self, payload: Payload) -> StorageDriverClaim:
        key, data = stored_form(payload)
        path = self._path(key)
        try:
            os.utime(path)  # the file exists, and counts as new for `remove_unused`
        except FileNotFoundError:
            self._write(path, data)
        return StorageDriverClaim({"key": key})

    def _write(self, path: Path, data: bytes) -> None:
        _make_private(path.parent)
        number, made = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        # Without this, a power failure could lose the name after the reference was recorded in a history.
        for folder in (path.parent, self._folder):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _retrieve(self, key: str) -> Payload:
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            raise DecodeError(
                f"the payload stored as {key[:12]}… is missing from the directory of the driver {self._name!r}"
            ) from None
        return from_stored(key, data)
