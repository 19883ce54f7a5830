"""A read-only database.

python examples/sql_query.py
"""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Annotated, Any

from msgspec import Meta

from trunkline import Context, Server, ToolAnnotations, ToolError


async def open_database(_server: Server) -> AsyncGenerator[sqlite3.Connection]:
    """Open the database before the first call, and close it after the last one."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        database.executescript("""
            CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);
            INSERT INTO users (name) VALUES ('Alice'), ('Bob'), ('Carol');
            PRAGMA query_only = ON;
        """)
        database.row_factory = sqlite3.Row
        yield database


server = Server("sql", version="1.0", lifespan=open_database)


@server.tool(annotations=ToolAnnotations(read_only_hint=True), meta={"version": "1.0.0"})
def sql_query(
    query: Annotated[str, "SQL query to execute"], ctx: Context, limit: Annotated[int, Meta(ge=1, le=1000)] = 100
) -> list[dict[str, Any]]:
    """Execute SQL queries against the database."""
    try:
        return [dict(row) for row in ctx.lifespan.execute(query).fetchmany(limit)]
    except sqlite3.Error as error:
        raise ToolError(f"SQL error: {error}") from error


if __name__ == "__main__":
    server.run()
