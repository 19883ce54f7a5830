"""The server that the official conformance suite asks for. Each module says a part of what it offers."""

from everything import asking, content, headers, prompts, resources, rounds, schemas, tasks, telling
from everything.server import server

__all__ = ["asking", "content", "headers", "prompts", "resources", "rounds", "schemas", "server", "tasks", "telling"]
