"""Blocks that write at the same time share a commit, and nothing else."""

import asyncio
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from hub_server.database import Database
from hub_server.errors import Unavailable


@pytest.fixture
async def database(tmp_path, monkeypatch):
    # A group ends by age after 0.1 s, which a busy machine can spend between two blocks of a test.
    monkeypatch.setattr("hub_server.sqlite.MAX_AGE_S", 60.0)
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'hub.db'}")
    async with database.write() as session:
        await session.execute(text("CREATE TABLE words (word TEXT PRIMARY KEY)"))
        await session.execute(
            text("CREATE TABLE uses (word TEXT REFERENCES words DEFERRABLE INITIALLY DEFERRED)")
        )
    yield database
    await database.aclose()


def stored(database):
    with closing(sqlite3.connect(database.url.partition("///")[2])) as connection:
        return {word for (word,) in connection.execute("SELECT word FROM words")}


async def write(database, word, *, then=None):
    async with database.write() as session:
        await session.execute(text("INSERT INTO words VALUES (:word)"), {"word": word})
        if then is not None:
            await then()


async def test_blocks_of_the_same_moment_share_commits_and_are_durable_when_they_end(database):
    commits = []
    event.listen(database.engine.sync_engine, "commit", lambda connection: commits.append(1))

    async def one(number):
        await write(database, f"w{number}")
        assert f"w{number}" in stored(database)

    await asyncio.gather(*(one(number) for number in range(40)))
    assert len(stored(database)) == 40
    assert len(commits) <= 4


async def test_a_block_that_fails_undoes_its_own_work_alone(database):
    async def fail():
        await asyncio.sleep(0)
        raise ValueError("no")

    results = await asyncio.gather(
        *(write(database, f"w{n}", then=fail if n % 3 == 1 else None) for n in range(9)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), ValueError, type(None)] * 3
    assert stored(database) == {f"w{n}" for n in range(9) if n % 3 != 1}


async def test_when_the_commit_fails_no_block_of_the_group_is_acknowledged(database):
    async def dangling():
        async with database.write() as session:
            await session.execute(text("INSERT INTO uses VALUES ('missing')"))

    results = await asyncio.gather(
        write(database, "before"), dangling(), write(database, "after"), return_exceptions=True
    )
    assert [type(result).__name__ for result in results] == ["IntegrityError"] * 3
    assert stored(database) == set()
    await write(database, "next")
    assert stored(database) == {"next"}


async def test_a_transaction_that_the_database_ended_by_itself_is_no_success(database):
    async def lose():
        async with database.write() as session:
            raw = await (await session.connection()).get_raw_connection()
            raw.driver_connection._conn.rollback()  # as SQLite does on a full disk

    results = await asyncio.gather(write(database, "before"), lose(), return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable}
    assert stored(database) == set()
    await write(database, "next")
    assert stored(database) == {"next"}


async def test_two_processes_worth_of_writers_take_turns(database):
    other = Database(database.url)
    await asyncio.gather(*(write((database, other)[n % 2], f"w{n}") for n in range(30)))
    assert len(stored(database)) == 30
    await other.aclose()


async def test_look_ups_see_what_was_committed_and_nothing_else(database):
    async def count():
        async with database.look_up() as session:
            return await session.scalar(text("SELECT count(*) FROM words"))

    async def look():
        assert await count() == 0

    await write(database, "one", then=look)
    assert await count() == 1


@pytest.mark.parametrize("point", ["waiting", "inside", "committing"])
async def test_a_cancelled_block_leaves_the_turn_to_the_next_one(database, point):
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def pause():
        inside.set()
        await go_on.wait()

    first = asyncio.create_task(write(database, "first", then=pause))
    await inside.wait()
    second = asyncio.create_task(write(database, "second"))
    third = asyncio.create_task(write(database, "third"))
    await asyncio.sleep(0)
    if point == "committing":
        committing = asyncio.Event()
        event.listen(database.engine.sync_engine, "commit", lambda _connection: committing.set())
        go_on.set()
        await committing.wait()
        first.cancel()
    else:
        (second if point == "waiting" else first).cancel()
        go_on.set()
    await asyncio.wait_for(asyncio.wait([first, second, third]), 20)
    await write(database, "last")
    gone = {"waiting": {"second"}, "inside": {"first"}, "committing": set()}[point]
    assert stored(database) == {"first", "second", "third", "last"} - gone


OUTCOMES = st.lists(st.tuples(st.sampled_from(["ok", "raise", "cancel"]), st.integers(0, 4)))


@settings(max_examples=20, deadline=None)
@given(OUTCOMES)
def test_what_is_stored_is_what_was_acknowledged(outcomes):
    asyncio.run(play(outcomes))


async def play(outcomes):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite+aiosqlite:///{folder}/hub.db")
        async with database.write() as session:
            await session.execute(text("CREATE TABLE words (word TEXT PRIMARY KEY)"))

        async def block(number, outcome, steps):
            async def then():
                for _ in range(steps):
                    await asyncio.sleep(0)
                if outcome == "raise":
                    raise ValueError(number)

            await write(database, str(number), then=then)

        tasks = [
            asyncio.create_task(block(number, outcome, steps))
            for number, (outcome, steps) in enumerate(outcomes)
        ]
        for task, (outcome, steps) in zip(tasks, outcomes, strict=True):
            if outcome == "cancel":
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await write(database, "last")
        acknowledged = {str(n) for n, result in enumerate(results) if result is None} | {"last"}
        maybe = {str(n) for n, result in enumerate(results) if is_cancelled(result)}
        assert acknowledged <= stored(database) <= acknowledged | maybe
        await database.aclose()


def is_cancelled(result):
    return isinstance(result, asyncio.CancelledError)
