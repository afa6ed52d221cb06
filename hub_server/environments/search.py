"""Lists, full-text search and stars. Every query goes through `readable_by`."""

import hashlib
import re
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Select, and_, column, exists, func, select, table, text
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Action, Principal, require_account
from hub_server.accounts.models import Owner
from hub_server.accounts.service import owner_by_slug
from hub_server.environments.models import Environment, EnvironmentTag, Star, Version
from hub_server.environments.service import OwnedEnvironment, readable_by

MAX_WORDS = 12
MAX_CANDIDATES = 500
"""Maximum number of matches that are ranked. A query with more matches is too general for a ranking."""
README_CHARACTERS = 20_000

_DOUBLED_END = re.compile(r"([bcdfghjkmnpqrtvwxy])\1$", re.IGNORECASE)

_SEARCH = table("environment_search", column("environment_id"), column("document"))


class ListQuery(BaseModel):
    """The filters and the order of a list."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    search: str | None = Field(None, max_length=400)
    owner: str | None = Field(None, max_length=64)
    visibility: str | None = None
    tags: list[str] = []
    starred_only: bool = False
    mine_only: bool = False
    sort_by: Literal["name", "created_at", "updated_at", "stars", "relevance"] | None = None
    sort_order: Literal["asc", "desc"] = "desc"
    limit: int = Field(50, ge=1, le=500)
    offset: int = Field(0, ge=0, le=1_000_000)


class EnvironmentPage(NamedTuple):
    """Some rows, and the total number of rows (at most `MAX_CANDIDATES` for a search)."""

    rows: list[OwnedEnvironment]
    total: int


def words_of(query: str) -> list[str]:
    """Return the words of a query without characters that a search engine could read as operators."""
    return re.findall(r"\w+", query.casefold())[:MAX_WORDS]


async def list_environments(
    session: AsyncSession, caller: Principal, filters: ListQuery
) -> EnvironmentPage:
    """Return a page of the environments that match and that the caller may see."""
    conditions = [readable_by(caller), *await _filters(session, caller, filters)]
    words = words_of(filters.search or "")
    if filters.search and not words:
        return EnvironmentPage([], 0)
    base = select(Environment, Owner).join(Owner, Owner.id == Environment.owner_id)
    if words:
        ids = await _matching_ids(session, words, and_(*conditions))
        total = len(ids)
        query = base.where(Environment.id.in_(ids))
        if filters.sort_by in (None, "relevance"):
            page = ids[filters.offset : filters.offset + filters.limit]
            rows = (await session.execute(base.where(Environment.id.in_(page)))).all()
            place = {environment_id: i for i, environment_id in enumerate(page)}
            ordered = sorted(rows, key=lambda row: place[row[0].id])
            return EnvironmentPage([OwnedEnvironment(*row) for row in ordered], total)
    else:
        query = base.where(*conditions)
        count = select(func.count()).select_from(Environment).where(*conditions)
        total = await session.scalar(count) or 0
    rows = await session.execute(
        _ordered(query, filters).offset(filters.offset).limit(filters.limit)
    )
    return EnvironmentPage([OwnedEnvironment(*row) for row in rows], total)


async def _filters(
    session: AsyncSession, caller: Principal, filters: ListQuery
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if filters.owner:
        owner = await owner_by_slug(session, filters.owner)
        conditions.append(Environment.owner_id == (owner.id if owner else ""))
    if filters.visibility:
        conditions.append(Environment.visibility == filters.visibility.upper())
    if filters.mine_only:
        conditions.append(Environment.owner_id.in_(list(caller.roles)))
    for tag in filters.tags[:MAX_WORDS]:
        has_tag = exists().where(
            EnvironmentTag.environment_id == Environment.id, EnvironmentTag.tag == tag.lower()
        )
        conditions.append(has_tag)
    if filters.starred_only:
        starred = exists().where(
            Star.environment_id == Environment.id, Star.user_id == (caller.user_id or "")
        )
        conditions.append(starred)
    return conditions


def _ordered(query: Select[Environment, Owner], filters: ListQuery) -> Select[Environment, Owner]:
    columns = {
        "name": Environment.normalized_name,
        "created_at": Environment.created_at,
        "updated_at": Environment.updated_at,
        "stars": Environment.stars,
    }
    chosen = columns.get(filters.sort_by or "created_at", Environment.created_at)
    if filters.sort_order == "asc":
        return query.order_by(chosen.asc(), Environment.id.asc())
    return query.order_by(chosen.desc(), Environment.id.desc())


def _or_its_stem(term: str, word: str) -> str:
    """Return the term, or the term or its stem: SQLite stems "adding" to "ad" and leaves "add" as it is."""
    is_doubled = _DOUBLED_END.search(word) is not None
    return f'({term} OR "{word[:-1]}")' if is_doubled else term


async def _matching_ids(
    session: AsyncSession, words: list[str], condition: ColumnElement[bool]
) -> list[str]:
    """Return the ids of the readable environments with all words, best match first. The last word may be a prefix."""
    if session.get_bind().dialect.name == "sqlite":
        # Only the last word may be a prefix: a prefix costs a merge of all words that begin with it.
        terms = [f'"{word}"' for word in words[:-1]] + [f'"{words[-1]}"*']
        match = " AND ".join(map(_or_its_stem, terms, words))
        # Matches come newest first without a separate sort, so that a word in every document costs no more than a rare
        # one. The best of these matches are ranked first.
        query = (
            select(Environment.id, text("bm25(environment_search, 0, 8, 4, 2, 1) AS score"))
            .join(_SEARCH, _SEARCH.c.environment_id == Environment.id)
            .where(text("environment_search MATCH :match").bindparams(match=match), condition)
            .order_by(text("environment_search.rowid DESC"))
            .limit(MAX_CANDIDATES)
        )
        rows = (await session.execute(query)).all()
        return [environment_id for environment_id, _ in sorted(rows, key=lambda row: row[1])]
    # PostgreSQL keeps `owner/name` and `a-b` as one word each, so every word may be a prefix here.
    match = func.to_tsquery("simple", " & ".join(f"{word}:*" for word in words))
    score = func.ts_rank(_SEARCH.c.document, match)
    query = (
        select(Environment.id, score)
        .join(_SEARCH, _SEARCH.c.environment_id == Environment.id)
        .where(_SEARCH.c.document.op("@@")(match), condition)
        .limit(MAX_CANDIDATES)
    )
    rows = (await session.execute(query)).all()
    return [environment_id for environment_id, _ in sorted(rows, key=lambda row: -row[1])]


async def index_document(session: AsyncSession, environment: Environment, readme: str) -> None:
    """Replace an environment's words in the search index."""
    values = {
        "id": environment.id,
        "name": f"{environment.full_name} {environment.normalized_name.replace('-', ' ')}",
        "tags": " ".join(environment.tags),
        "description": environment.description,
        "readme": readme[:README_CHARACTERS],
    }
    digest = hashlib.sha256(repr(values).encode()).hexdigest()
    if digest == environment.indexed_sha256:
        return
    environment.indexed_sha256 = digest
    if session.get_bind().dialect.name == "sqlite":
        row = await session.scalar(
            text("SELECT fts_rowid FROM environment_rows WHERE environment_id = :id"), values
        )
        if row is not None:
            await session.execute(
                text("DELETE FROM environment_search WHERE rowid = :row"), {"row": row}
            )
        result = await session.execute(
            text(
                "INSERT INTO environment_search (environment_id, name, tags, description, readme)"
                " VALUES (:id, :name, :tags, :description, :readme)"
            ),
            values,
        )
        await session.execute(
            text(
                "INSERT INTO environment_rows (environment_id, fts_rowid) VALUES (:id, :row)"
                " ON CONFLICT (environment_id) DO UPDATE SET fts_rowid = excluded.fts_rowid"
            ),
            {"id": environment.id, "row": result.lastrowid},  # type: ignore[attr-defined]
        )
        return
    await session.execute(
        text(
            "INSERT INTO environment_search (environment_id, document) VALUES (:id,"
            " setweight(to_tsvector('simple', :name), 'A') ||"
            " setweight(to_tsvector('simple', :tags), 'B') ||"
            " setweight(to_tsvector('simple', :description), 'C') ||"
            " setweight(to_tsvector('simple', :readme), 'D'))"
            " ON CONFLICT (environment_id) DO UPDATE SET document = excluded.document"
        ),
        values,
    )


async def set_star(
    session: AsyncSession, caller: Principal, found: OwnedEnvironment, starred: bool
) -> int:
    """Add or remove the caller's star and return the number of stars."""
    require_account(caller, Action.READ)
    key = (caller.user_id, found.environment.id)
    row = await session.get(Star, key)
    if starred and row is None:
        session.add(Star(user_id=caller.user_id, environment_id=found.environment.id))
    elif not starred and row is not None:
        await session.delete(row)
    await session.flush()
    count = await session.scalar(
        select(func.count()).select_from(Star).where(Star.environment_id == found.environment.id)
    )
    found.environment.stars = count or 0
    return found.environment.stars


async def is_starred(session: AsyncSession, caller: Principal, environment_id: str) -> bool:
    """Return whether the caller has starred the environment."""
    if not caller.is_known:
        return False
    return await session.get(Star, (caller.user_id, environment_id)) is not None


async def reindex(session: AsyncSession, environment: Environment) -> None:
    """Update the search index after a change without a new version."""
    readme = await session.scalar(
        select(Version.readme)
        .where(
            Version.environment_id == environment.id,
            Version.version == environment.latest_version,
            Version.deleted_at.is_(None),
        )
        .limit(1)
    )
    await index_document(session, environment, readme or "")
