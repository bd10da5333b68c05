"""External storage of large payloads: the guarantees of each driver, and workflows on every engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from temporalio.api.common.v1 import Payload as TheirPayload
from temporalio.converter import ExternalStorage as TheirStorage
from temporalio.converter import StorageDriver as TheirDriver

from hourglass import activity, workflow
from hourglass.client import AsyncClient, Client
from hourglass.contrib import s3
from hourglass.contrib.s3 import S3Storage, StorageUnavailableError
from hourglass.converter import (
    Codec,
    ExternalStorage,
    FolderStorage,
    Payload,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from hourglass.errors import DecodeError, EncodeError, UsageError
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker

from .bucket import ACCESS, REGION, SECRET, Bucket, serve_bucket

STORE, RETRIEVE = StorageDriverStoreContext(), StorageDriverRetrieveContext()
LARGE = Payload(b'"' + b"x" * 5000 + b'"', "json/plain", {"mark": b"\x00\xff"})
OTHER = Payload(b"\x00" * 6000, "binary/plain")


class AsyncDriver(StorageDriver):
    """A driver with `async def` methods that keeps payloads in a dictionary."""

    name = "awaited"

    def __init__(self) -> None:
        self.kept: dict[str, Payload] = {}

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload], /
    ) -> Sequence[StorageDriverClaim]:
        await asyncio.sleep(0)
        claims = []
        for payload in payloads:
            key = f"{len(payload.data)}-{payload.encoding}"
            self.kept[key] = payload
            claims.append(StorageDriverClaim({"key": key}))
        return claims

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim], /
    ) -> Sequence[Payload]:
        await asyncio.sleep(0)
        return [self.kept[claim.claim_data["key"]] for claim in claims]


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """Return a bucket on a local port."""
    with serve_bucket() as made:
        yield made


def s3_driver(bucket: Bucket, **options: Any) -> S3Storage:
    keys = {"access_key": ACCESS, "secret_key": SECRET, "region": REGION, **options}
    return S3Storage("payloads", endpoint=bucket.endpoint, **keys)


@pytest.fixture(params=["folder", "s3", "awaited"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> StorageDriver:
    if request.param == "folder":
        return FolderStorage(tmp_path / "deep" / "payloads")
    return s3_driver(request.getfixturevalue("bucket")) if request.param == "s3" else AsyncDriver()


# --- every driver --------------------------------------------------------------------------------------------------


def test_stored_payloads_are_retrieved_in_order_with_metadata(driver: StorageDriver) -> None:
    """Payloads below the threshold are not stored. A reference contains no data."""
    storage = ExternalStorage([driver], payload_size_threshold=1000)
    small = Payload(b"1")
    sent = storage.encode([LARGE, small, OTHER, LARGE])
    assert sent[1] is small
    assert all(len(payload.data) < 300 and b"xxx" not in payload.data for payload in sent)
    assert sent[0] == sent[3], "the same payload has the same claim"
    assert storage.decode(sent) == [LARGE, small, OTHER, LARGE]
    assert ExternalStorage([driver], payload_size_threshold=10**9).decode(sent[:1]) == [LARGE]


def test_storage_applies_its_codec_before_storing_and_after_retrieving(driver: StorageDriver) -> None:
    storage = ExternalStorage([driver], payload_size_threshold=1000, codec=ReversingCodec())
    sent = storage.encode([LARGE, Payload(b"12")])
    assert sent[1].data == b"21"
    (stored,) = ExternalStorage([driver]).decode(sent[:1])
    assert stored.encoding == "binary/reversed"
    assert [payload.data for payload in storage.decode(sent)] == [LARGE.data, b"12"]


def test_storage_references_are_compatible_with_temporalio(driver: StorageDriver) -> None:
    """References of temporalio's first releases are read, too."""

    class Theirs(TheirDriver):
        def name(self) -> str:
            return driver.name

        async def store(self, context: Any, payloads: Any) -> Any:
            raise NotImplementedError

        async def retrieve(self, context: Any, claims: Any) -> Any:
            raise NotImplementedError

    storage = ExternalStorage([driver], payload_size_threshold=1000)
    (sent,) = storage.encode([LARGE])
    metadata = {"encoding": sent.encoding.encode(), **(sent.metadata or {})}
    theirs = TheirStorage([Theirs()])._decode_reference(TheirPayload(data=sent.data, metadata=metadata))
    assert theirs is not None
    assert theirs.driver_name == driver.name
    claim = dict(theirs.claim_data)
    old = f'{{"driver_name":"{driver.name}","driver_claim":{{"claim_data":{{"key":"{claim["key"]}"}}}}}}'
    assert storage.decode([Payload(old.encode(), "json/external-storage-reference")]) == [LARGE]


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "0" * 63, "0" * 64])
def test_unknown_storage_reference_is_rejected(key: str, tmp_path: Path, bucket: Bucket) -> None:
    """A key is never used as a path."""
    for driver in (FolderStorage(tmp_path), s3_driver(bucket)):
        with pytest.raises(DecodeError, match=r"no valid key|is missing from the|is not in the"):
            driver.retrieve(RETRIEVE, [StorageDriverClaim({"key": key})])


# --- a folder ---------------------------------------------------------------------------------------------------------


def test_folder_storage_stores_equal_payloads_once_and_detects_damage(tmp_path: Path) -> None:
    folder = FolderStorage(tmp_path)
    (claim,) = folder.store(STORE, [LARGE])
    folder.store(STORE, [LARGE])
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DecodeError, match="changed or truncated"):
        folder.retrieve(RETRIEVE, [claim])
    existing_file = tmp_path / "file"
    existing_file.write_text("in the way")
    with pytest.raises(OSError, match="directory"):
        FolderStorage(existing_file).store(STORE, [LARGE])


def test_folder_storage_creates_private_folders_and_files(tmp_path: Path) -> None:
    """The mode of an existing folder is not changed."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        FolderStorage(shared / "deep" / "payloads").store(STORE, [LARGE])
    finally:
        os.umask(before)
    created = list(shared.rglob("*"))
    assert len(created) == 4
    assert not any(path.stat().st_mode & 0o077 for path in created)
    assert shared.stat().st_mode & 0o777 == 0o755


def test_remove_unused_deletes_payloads_not_stored_recently(tmp_path: Path) -> None:
    """Other files of the folder are not deleted."""
    folder = FolderStorage(tmp_path)
    claims = folder.store(STORE, [LARGE, OTHER])
    (tmp_path / "README").write_text("mine")
    old = time.time() - 1000
    for file in tmp_path.rglob("*"):
        os.utime(file, (old, old))
    folder.store(STORE, [LARGE])
    assert folder.remove_unused(timedelta(seconds=500)) == 1
    assert folder.retrieve(RETRIEVE, claims[:1]) == [LARGE]
    assert (tmp_path / "README").exists()


# --- a bucket ---------------------------------------------------------------------------------------------------------


def test_s3_signature_equals_the_example_of_aws() -> None:
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20130524T000000Z",
    }
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    signature = s3.sign("GET", "/test.txt", headers, headers["x-amz-content-sha256"], secret, "us-east-1")
    assert signature == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


def test_unavailable_bucket_is_retried_and_its_error_contains_no_keys(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_FIRST_PAUSE", 0.001)
    driver = s3_driver(bucket)
    bucket.outages = 2
    claims = driver.store(STORE, [LARGE])
    assert driver.retrieve(RETRIEVE, claims) == [LARGE]
    assert len(bucket.requests) == 4
    bucket.outages = 100
    with pytest.raises(StorageUnavailableError, match=r"payloads at 127.0.0.1:.* answered 503 to PUT"):
        driver.store(STORE, [LARGE])
    bucket.outages = 0
    with pytest.raises(StorageUnavailableError, match="answered 403") as caught:
        s3_driver(bucket, secret_key="wrong").store(STORE, [LARGE])
    assert "wrong" not in f"{caught.value}{driver!r}"
    with pytest.raises(StorageUnavailableError, match="cannot be reached"):
        S3Storage("b", endpoint="http://127.0.0.1:9", access_key="a", secret_key="b").store(STORE, [LARGE])


def test_truncated_s3_response_is_retried(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as an outage. Damaged data would fail the activity."""
    monkeypatch.setattr(s3, "_FIRST_PAUSE", 0.001)
    driver = s3_driver(bucket)
    claims = driver.store(STORE, [LARGE])
    bucket.cuts = 2
    assert driver.retrieve(RETRIEVE, claims) == [LARGE]
    bucket.cuts = 100
    with pytest.raises(StorageUnavailableError, match="cannot be reached: IncompleteRead"):
        driver.retrieve(RETRIEVE, claims)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_s3_storage_does_not_follow_redirects(bucket: Bucket, code: int) -> None:
    """Requests contain credentials that are meant for the endpoint only."""
    with serve_bucket() as other:
        bucket.redirect = code, other.endpoint
        driver = s3_driver(bucket, session_token="token-of-a-session")
        with pytest.raises(StorageUnavailableError, match=f"answered {code} to PUT, a redirect"):
            driver.store(STORE, [LARGE])
        with pytest.raises(StorageUnavailableError, match=f"answered {code} to GET, a redirect"):
            driver.retrieve(RETRIEVE, [StorageDriverClaim({"key": "0" * 64})])
        assert other.requests == []
    assert len(bucket.requests) == 2


def test_s3_storage_limits_the_size_of_responses_and_payloads(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_MAX_BYTES", 100_000)
    driver = s3_driver(bucket)
    bucket.is_endless = True
    with pytest.raises(DecodeError, match="more than 100000 bytes"):
        driver.retrieve(RETRIEVE, [StorageDriverClaim({"key": "0" * 64})])
    with pytest.raises(EncodeError, match="too large for a bucket"):
        driver.store(STORE, [Payload(bytes(100_001), "binary/plain")])


@pytest.mark.parametrize(
    "endpoint", ["https://user:hush@example.com", "http://hush@example.com/x", "hush:@x"]
)
def test_s3_endpoint_with_a_password_is_rejected(endpoint: str) -> None:
    """Messages about the bucket would contain the password."""
    with pytest.raises(UsageError, match="pass access_key and secret_key") as caught:
        S3Storage("b", endpoint=endpoint)
    assert "hush" not in str(caught.value)


def test_s3_credentials_come_from_the_environment_by_default(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = S3Storage("payloads", endpoint=bucket.endpoint, region=REGION)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageUnavailableError, match="AWS_ACCESS_KEY_ID"):
        driver.store(STORE, [LARGE])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of a session")
    assert driver.retrieve(RETRIEVE, driver.store(STORE, [LARGE])) == [LARGE]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ExternalStorage([]), "needs at least one driver"),
        (lambda: ExternalStorage([AsyncDriver()], payload_size_threshold=-1), "number of bytes"),
        (lambda: ExternalStorage([AsyncDriver(), FolderStorage("x")]), "driver_selector"),
        (
            lambda: ExternalStorage([AsyncDriver(), AsyncDriver()], lambda *_: None),
            "two drivers have the name",
        ),
        (lambda: ExternalStorage(["folder"]), "must be a StorageDriver"),
        (lambda: S3Storage("b", endpoint="s3.example"), "endpoint must be a URL"),
        (lambda: S3Storage("a/b", endpoint="http://s3.example"), "without a slash"),
    ],
)
def test_invalid_storage_settings_are_rejected(make: Callable[[], object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make()


def test_driver_selector_selects_a_driver_or_none(tmp_path: Path) -> None:
    folder, awaited = FolderStorage(tmp_path), AsyncDriver()
    storage = ExternalStorage(
        [folder, awaited],
        lambda _, payload: None if payload == OTHER else awaited if payload == LARGE else folder,
        payload_size_threshold=100,
    )
    third = Payload(b"y" * 200)
    sent = storage.encode([LARGE, OTHER, third])
    assert sent[1] is OTHER
    assert len(awaited.kept) == 1
    assert storage.decode(sent) == [LARGE, OTHER, third]
    with pytest.raises(DecodeError, match="needs the storage driver 'awaited'; configured drivers: folder"):
        ExternalStorage([folder]).decode(sent)
    with pytest.raises(UsageError, match="not one of the configured drivers"):
        ExternalStorage([folder], lambda *_: awaited, payload_size_threshold=1).encode([LARGE])


# --- through workflows ------------------------------------------------------------------------------------------------


class ReversingCodec:
    """A codec with `async def` methods that reverses data."""

    async def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        await asyncio.sleep(0)
        return [
            Payload(payload.data[::-1], "binary/reversed", {"was": payload.encoding.encode()})
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        await asyncio.sleep(0)
        return [Payload(payload.data[::-1], (payload.metadata or {})["was"].decode()) for payload in payloads]


@activity.defn(start_to_close_timeout=60)
def repeat(text: str, times: int) -> str:
    return text * times


@workflow.defn
class LargeValues:
    """A workflow with a large argument, activity result, update and result."""

    def __init__(self) -> None:
        self.more = ""

    @workflow.run
    def run(self, text: str) -> str:
        workflow.wait_condition(lambda: bool(self.more))
        return repeat(text, 3) + self.more

    @workflow.update
    def add(self, text: str) -> str:
        self.more = text
        return text


@pytest.mark.parametrize("engine", ["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def test_large_values_of_a_workflow_pass_through_external_storage(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The codec of the storage is asynchronous; both clients read the result."""
    target = "local:" if engine == "memory" else f"local:{tmp_path / 'runs.db'}"
    if engine == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    folder = FolderStorage(tmp_path / "payloads")
    storage: Codec = ExternalStorage([folder], payload_size_threshold=1000, codec=ReversingCodec())
    text = "t" * 2000
    with (
        Client.connect(target, codec=storage) as client,
        Worker(client, "large", workflows=[LargeValues], activities=[repeat]),
    ):
        run = client.start_workflow(LargeValues.run, text, task_queue="large")
        assert run.execute_update(LargeValues.add, "u" * 3000) == "u" * 3000

        async def awaited() -> str:
            """="""
            async with await AsyncClient.connect(target, codec=storage) as other:
                answer: str = await other.get_workflow_handle(run.id, workflow=LargeValues.run).result(
                    timeout=60
                )
                return answer

        expected = text * 3 + "u" * 3000
        assert run.result(timeout=60) == expected
        if engine != "memory":  # each client in memory has an engine of its own
            assert asyncio.run(awaited()) == expected
        history = run.history()
    assert len(list((tmp_path / "payloads").rglob("?" * 64))) == 4
    assert max(len(str(event)) for event in history.events) < 3000
    assert Replayer(workflows=[LargeValues], codec=storage).replay(history).ok


def test_workflow_continues_after_an_outage_of_external_storage(tmp_path: Path) -> None:
    """A client call fails during the outage."""
    folder = FolderStorage(tmp_path / "payloads")

    class UnavailableDriver(StorageDriver):
        name = "away"
        outages: ClassVar = {"store": 1, "retrieve": 2}

        def store(self, context: Any, payloads: Any, /) -> Any:
            self._check("store")
            return folder.store(context, payloads)

        def retrieve(self, context: Any, claims: Any, /) -> Any:
            self._check("retrieve")
            return folder.retrieve(context, claims)

        def _check(self, what: str) -> None:
            if self.outages[what]:
                self.outages[what] -= 1
                raise StorageUnavailableError("the bucket is away")

    away = UnavailableDriver()
    with (
        Client.connect("local:", codec=ExternalStorage([away], payload_size_threshold=100)) as client,
        Worker(client, workflows=[LargeValues], activities=[repeat]),
    ):
        with pytest.raises(EncodeError, match="the bucket is away"):
            client.start_workflow(LargeValues.run, "t" * 200)
        run = client.start_workflow(LargeValues.run, "t" * 200)
        assert run.execute_update(LargeValues.add, "u") == "u"
        assert run.result(timeout=60) == "t" * 600 + "u"
        assert away.outages == {"store": 0, "retrieve": 0}
