"""A server with durable tasks: kill it, restart it with the same file, and it continues where it was.

python examples/reports.py reports.db
"""

import asyncio
import os
import sys
from itertools import count

from trunkline import Context, Server, SqliteStore, TaskPolicy

store = SqliteStore(sys.argv[1] if len(sys.argv) > 1 else "reports.db")
server = Server("reports", store=store)
jobs = count(1)


@server.tool(task=TaskPolicy(recovery="resume", poll_interval=0.2))
async def write_report(pages: int, ctx: Context) -> str:
    """Writes a report, page by page."""
    done: list[str] = ctx.resumed_from or []
    for page in range(len(done) + 1, pages + 1):
        await asyncio.sleep(0.2)  # the work
        done.append(f"page {page} by process {os.getpid()}")
        ctx.progress(page, pages, f"page {page} is written")
        await ctx.checkpoint(done)
    return "\n".join(done)


@server.tool
async def print_report(copies: int) -> str:
    """Prints the report. With an idempotency key it is printed once."""
    return f"{copies} copies, job {next(jobs)} of process {os.getpid()}"


@server.resource("reports://process", mime_type="text/plain")
def read_process() -> str:
    """The pid of this server."""
    return str(os.getpid())


if __name__ == "__main__":
    server.run()
