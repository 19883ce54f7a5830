"""URIs of the files in a directory: `uri_of` makes one from a file's path, and `path_of` gives the path back.

Every path that the file system allows has a URI. A path is a `str` as the `os` module gives it, with surrogates for
bytes that are not UTF-8. Every byte that may not stand in a segment of a URI as it is, `%` among them, is
percent-encoded, so that `path_of(uri_of(path)) == path`. A URI in which more is encoded names the same file.
"""

import os
from typing import Final
from urllib.parse import quote

from trunkline.errors import RegistrationError, ResourceAccessDenied
from trunkline.registry.templates import UriTemplate, escapes

__all__ = ["FileUris"]

_VARIABLE: Final = "path"
_SAFE_CHARACTERS: Final = "/!$&'()*+,;=:@"  # RFC 3986: stands in a path as it is, besides what `quote` never encodes


class FileUris:
    """The URIs that a template gives to the files below a directory."""

    def __init__(self, pattern: str) -> None:
        self.template = UriTemplate(pattern, errors="surrogateescape")
        if list(self.template.variables) != [_VARIABLE] or not self.template.holds_texts:
            raise RegistrationError(f"resource template {pattern!r}: a folder needs one place for the file, {{+path}}")

    def uri_of(self, path: str) -> str:
        """The URI of a file, by its path from the directory."""
        if self.template.keeps_reserved:  # and triplets, too: what is encoded here stays as it is
            path = quote(path, safe=_SAFE_CHARACTERS, errors="surrogateescape")
        return self.template.expand({_VARIABLE: path})

    def path_of(self, uri: str) -> str | None:
        """The path of a file from the directory, by its URI; None if the URI does not follow the template.

        Raises `ResourceAccessDenied` for a path that is absolute, climbs with `..` or holds a null character.
        """
        values = self.template.match(uri)
        if values is None:
            return None
        path = str(values.get(_VARIABLE, ""))  # an operator such as `?` lets it be missing
        if _leaves_directory(path):
            raise ResourceAccessDenied(uri)
        return path


def _leaves_directory(path: str) -> bool:
    if os.name == "nt":
        return escapes({_VARIABLE: path})
    return path.startswith("/") or "\0" in path or ".." in path.split("/")  # a backslash and a colon are ordinary
