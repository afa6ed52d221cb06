"""Samples of evaluations: incoming batches, outgoing pages, and removal.

Every size is bounded. One batch per caller is parsed at a time, samples have a maximum size, and a page is sent piece
by piece: rows are read after the client has received the earlier ones.
"""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server import stored
from hub_server.accounts.authorisation import Principal
from hub_server.accounts.service import owner_by_id
from hub_server.database import Database, inserter, utc_now
from hub_server.errors import BadRequest, Conflict, TooLarge
from hub_server.evaluations.models import EvaluatedEnvironment, Evaluation, Sample, SampleBatch
from hub_server.evaluations.service import find_own
from hub_server.limits import check_quota
from hub_server.settings import Settings
from verifiers.hub.wire import MAX_BATCH_VALUES

BATCHES_AT_ONCE = 2
ROWS_AT_ONCE = 200
BYTES_AT_ONCE = 2 * 1024**2
"""Size of one transaction, for which other writers wait, and of one read for a page."""
PIECE_BYTES = 256 * 1024
PURGED_AT_ONCE = 100
SAMPLE_BYTES = 128
"""Bytes of the quota that a sample uses beside its contents."""


class NewSample(NamedTuple):
    """A sample in the form in which it is stored."""

    key: str
    body: bytes
    """Compressed JSON."""
    size_bytes: int

    @property
    def stored_bytes(self) -> int:
        """Bytes of the quota that the sample uses."""
        return len(self.body) + len(self.key) + SAMPLE_BYTES


class ReceivedBatch(NamedTuple):
    """Samples of one request."""

    sha256: str
    rows: list[NewSample]

    def groups(self) -> Iterator[list[NewSample]]:
        """Yield the samples in parts, one per transaction. An empty batch has one empty part."""
        group: list[NewSample] = []
        for row in self.rows:
            size = sum(len(one.body) for one in group) + len(row.body)
            if group and (len(group) >= ROWS_AT_ONCE or size > BYTES_AT_ONCE):
                yield group
                group = []
            group.append(row)
        yield group


class BatchTurns:
    """Limits on parsing and storing batches: one batch per caller, and few callers at once."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._callers: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, caller: Principal) -> AsyncIterator[None]:
        """Wait for the caller's turn."""
        lock = self._callers.setdefault(caller.user_id or "", asyncio.Lock())
        async with lock, self._free:
            yield


def read_batch(path: Path, max_sample_bytes: int) -> ReceivedBatch:
    """Return the samples of a request body in a file. Call it from a thread, because bodies are large.

    A sample is identified by `sample_id`, or by example and rollout number. Other samples are identified by their
    position in the batch, because two rollouts may be equal to the last character.
    """
    body = path.read_bytes()
    try:
        document = stored.parse(body, MAX_BATCH_VALUES)
    except BadRequest as error:
        raise BadRequest(f'Send {{"samples": [...]}}. {error.detail}') from error
    samples = document.get("samples") if isinstance(document, dict) else None
    if not isinstance(samples, list) or not all(isinstance(s, dict) for s in samples):
        raise BadRequest('Send {"samples": [...]}: `samples` must be a list of objects.')
    digest = hashlib.sha256(body).hexdigest()
    rows: dict[str, NewSample] = {}
    for place, sample in enumerate(samples):
        text = stored.encoded(sample, f"Sample {place} of the batch", max_sample_bytes)
        key = _sample_key(sample, f"{digest[:32]}:{place}")
        rows[key] = NewSample(key, zlib.compress(text, 3), len(text))
    return ReceivedBatch(digest, list(rows.values()))


def _sample_key(sample: dict[str, Any], otherwise: str) -> str:
    if sample.get("sample_id") not in (None, ""):
        return f"id:{_plain(sample['sample_id'], 190)}"
    example, rollout = sample.get("example_id"), sample.get("rollout_number")
    if example is not None and rollout is not None:
        return f"ex:{_plain(example, 90)}:{_plain(rollout, 90)}"
    return otherwise


def _plain(value: Any, characters: int) -> str:
    """Return the beginning of a value as text that every database accepts. The value is part of a checked sample."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text.replace("\x00", "␀")[:characters]


async def store(
    database: Database,
    caller: Principal,
    evaluation_id: str,
    batch: ReceivedBatch,
    settings: Settings,
) -> int:
    """Store a batch and return how many of its samples are new. The same batch again adds nothing.

    A large batch takes several transactions, so that other writers get a turn in between. After an interruption,
    sending the batch again adds the missing samples.
    """
    new, groups = 0, list(batch.groups())
    for place, group in enumerate(groups):
        async with database.write() as session:
            row = await find_own(session, caller, evaluation_id)
            evaluation = row.evaluation
            if evaluation.status in ("FAILED", "CANCELLED"):
                raise Conflict(
                    f"The evaluation is {evaluation.status}; it accepts no more samples."
                )
            if place == 0 and await session.get(SampleBatch, (evaluation_id, batch.sha256)):
                return 0
            new += await _store_group(session, evaluation, group, settings)
            if place == len(groups) - 1:
                done = {"evaluation_id": evaluation_id, "sha256": batch.sha256}
                insert = inserter(session)(SampleBatch)
                await session.execute(
                    insert.values(**done, received_at=utc_now()).on_conflict_do_nothing()
                )
    return new


async def _store_group(
    session: AsyncSession, evaluation: Evaluation, group: list[NewSample], settings: Settings
) -> int:
    if not group:
        return 0
    if evaluation.sample_count + len(group) > settings.max_samples:
        raise TooLarge(
            f"The evaluation has {evaluation.sample_count} samples; the maximum is {settings.max_samples}."
        )
    owner = await owner_by_id(session, evaluation.owner_id)
    await check_quota(
        session,
        evaluation.owner_id,
        owner.slug if owner else "The owner",
        sum(row.stored_bytes for row in group),
        settings.owner_quota_bytes,
    )
    values = [
        {
            "evaluation_id": evaluation.id,
            "key": row.key,
            "body": row.body,
            "size_bytes": row.size_bytes,
        }
        for row in group
    ]
    insert = inserter(session)(Sample.__table__).values(values)
    insert = insert.on_conflict_do_nothing(index_elements=["evaluation_id", "key"])
    added = set(await session.scalars(insert.returning(Sample.__table__.c.key)))
    evaluation.sample_count += len(added)
    evaluation.stored_bytes += sum(row.stored_bytes for row in group if row.key in added)
    evaluation.updated_at = utc_now()
    return len(added)


# --- pages --------------------------------------------------------------------------------------


class PlannedSample(NamedTuple):
    """A sample of a page, before its contents are read."""

    id: int
    key: str
    size_bytes: int | None
    place: int
    """Position among all samples of the evaluation, from 1. It is also the number of the page with only this sample."""


async def plan(
    session: AsyncSession, evaluation_id: str, page_number: int, limit: int
) -> list[PlannedSample]:
    """Return the samples of a page (from 1) in the order of their arrival."""
    start = (page_number - 1) * limit
    query = (
        select(Sample.id, Sample.key, Sample.size_bytes)
        .where(Sample.evaluation_id == evaluation_id)
        .order_by(Sample.id)
        .offset(start)
        .limit(limit)
    )
    rows = await session.execute(query)
    return [PlannedSample(*row, place=start + n + 1) for n, row in enumerate(rows)]


async def page_pieces(
    database: Database, planned: list[PlannedSample], end: bytes, max_bytes: int
) -> AsyncIterator[bytes]:
    """Yield the JSON of a page, piece by piece.

    Samples that do not fit into `max_bytes` are replaced by an object with the reason. The first sample is always
    whole.
    """
    yield b'{"samples":['
    left = max_bytes
    for group in _read_together(planned):
        async with database.read() as session:
            query = select(Sample.id, Sample.body).where(Sample.id.in_([one.id for one in group]))
            bodies = {row.id: row.body for row in await session.execute(query)}
        for one in group:
            if one is not planned[0]:
                yield b","
            body = bodies.pop(one.id, None)
            size = one.size_bytes if body is not None else None
            if body is not None and size is None:
                # Earlier releases neither counted nor limited samples: measure this one, up to the space that is left.
                text = zlib.decompressobj().decompress(body, max(left, 1) + 1)
                size = len(text)
            if body is None or size is None or (size > left and one is not planned[0]):
                yield _left_out(one)
                continue
            left -= size
            for piece in _unpacked(body):
                yield piece
    yield end


def _read_together(planned: list[PlannedSample]) -> Iterator[list[PlannedSample]]:
    group, size = list[PlannedSample](), 0
    for one in planned:
        its_size = BYTES_AT_ONCE if one.size_bytes is None else one.size_bytes
        if group and (size + its_size > BYTES_AT_ONCE or len(group) >= ROWS_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(one)
        size += its_size
    if group:
        yield group


def _unpacked(body: bytes) -> Iterator[bytes]:
    packed = zlib.decompressobj()
    piece = packed.decompress(body, PIECE_BYTES)
    while piece:
        yield piece
        piece = packed.decompress(packed.unconsumed_tail, PIECE_BYTES)


def _left_out(one: PlannedSample) -> bytes:
    kind, _, rest = one.key.partition(":")
    known: dict[str, Any] = {}
    if kind == "id":
        known = {"sample_id": rest}
    elif kind == "ex":
        example, _, rollout = rest.rpartition(":")
        known = {"example_id": example, "rollout_number": rollout}
    size = "unknown" if one.size_bytes is None else str(one.size_bytes)
    reason = f"This sample does not fit on the page ({size} bytes). Request it alone: ?page={one.place}&limit=1"
    return orjson.dumps({**known, "size_bytes": one.size_bytes, "left_out": reason})


# --- removing -----------------------------------------------------------------------------------


async def purge(database: Database) -> int:
    """Remove the rows of deleted evaluations, a few per transaction. Returns how many evaluations were removed."""
    count = 0
    while True:
        async with database.write() as session:
            gone = await _purge_some(session)
        if gone is None:
            return count
        count += gone


async def _purge_some(session: AsyncSession) -> int | None:
    """Remove some rows of one deleted evaluation. Returns 1 if they were the last, None without such an evaluation."""
    query = select(Evaluation.id).where(Evaluation.deleted_at.is_not(None)).limit(1)
    evaluation_id = await session.scalar(query)
    if evaluation_id is None:
        return None
    of = Sample.evaluation_id == evaluation_id
    sizes = select(Sample.id, func.length(Sample.body)).where(of).limit(PURGED_AT_ONCE)
    ids, left = list[int](), BYTES_AT_ONCE
    for sample_id, size in await session.execute(sizes):
        if ids and size > left:
            break
        ids.append(sample_id)
        left -= size
    if ids:
        await session.execute(delete(Sample).where(Sample.id.in_(ids)))
        return 0
    of = SampleBatch.evaluation_id == evaluation_id
    batches = list(
        await session.scalars(select(SampleBatch.sha256).where(of).limit(PURGED_AT_ONCE))
    )
    if batches:
        await session.execute(delete(SampleBatch).where(of, SampleBatch.sha256.in_(batches)))
        return 0
    for model, column in (
        (EvaluatedEnvironment, EvaluatedEnvironment.evaluation_id),
        (Evaluation, Evaluation.id),
    ):
        await session.execute(delete(model).where(column == evaluation_id))
    return 1
