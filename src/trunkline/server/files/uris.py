"""URIs of the files in a directory: `uri_of` converts a path to a URI, and `path_of` converts it back.

Every path that the file system allows has a URI. A path is a `str` as the `os` module returns it, with surrogates for
bytes that are not UTF-8. Every byte that a URI segment does not allow literally, and `%`, is percent-encoded, so that
`path_of(uri_of(path)) == path`. A URI in which more is encoded names the same file.
"""

import os
from typing import Final
from urllib.parse import quote

from trunkline.errors import RegistrationError, ResourceAccessDenied
from trunkline.registry.templates import UriTemplate, escapes

__all__ = ["FileUris"]

_VARIABLE: Final = "path"
_SAFE_CHARACTERS: Final = "/!$&'()*+,;=:@"  # RFC 3986: literal in a path, besides those that `quote` never encodes


class FileUris:
    """Converts between the paths of files below a directory and their URIs, by a URI template."""

    def __init__(self, pattern: str) -> None:
        self.template = UriTemplate(pattern, errors="surrogateescape")
        if list(self.template.variables) != [_VARIABLE] or not self.template.holds_texts:
            raise RegistrationError(
                f"resource template {pattern!r}: the template of a folder needs exactly one variable, {{+path}}"
            )

    def uri_of(self, path: str) -> str:
        """Return the URI of a file, by its path relative to the directory."""
        if self.template.keeps_reserved:  # the template keeps percent-encoded triplets, too
            path = quote(path, safe=_SAFE_CHARACTERS, errors="surrogateescape")
        return self.template.expand({_VARIABLE: path})

    def path_of(self, uri: str) -> str | None:
        """Return the path of a file relative to the directory; None if the URI does not match the template.

        Raises `ResourceAccessDenied` for a path that is absolute, climbs with `..` or holds a null character.
        """
        values = self.template.match(uri)
        if values is None:
            return None
        path = str(values.get(_VARIABLE, ""))  # missing with an operator such as `?`
        if _leaves_directory(path):
            raise ResourceAccessDenied(uri)
        return path


def _leaves_directory(path: str) -> bool:
    if os.name == "nt":
        return escapes({_VARIABLE: path})
    return (
        path.startswith("/") or "\0" in path or ".." in path.split("/")
    )  # backslash and colon are ordinary characters
