"""The server that the official conformance suite asks for. Each module says a part of what it offers."""

from everything import asking, content, prompts, resources, schemas, telling
from everything.server import server

__all__ = ["asking", "content", "prompts", "resources", "schemas", "server", "telling"]
