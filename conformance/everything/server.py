"""The server itself. The modules beside this one say what it offers; the names in them are the suite's."""

from base64 import b64decode

from trunkline import Server

__all__ = ["RED_DOT", "SILENCE", "server"]

server = Server("trunkline-conformance", version="1.0", instructions="Everything that the conformance suite asks for.")

# A picture of one red pixel, and a sound of no length.
RED_DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
SILENCE = b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=")
