"""JSON with comments and trailing commas, as editors write their configuration files."""

__all__ = ["blank_comments"]


def blank_comments(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that the rest is JSON and keeps its positions. A byte order
    mark counts as a comment."""
    chars = [*text]
    if text.startswith("\ufeff"):
        chars[0] = " "
    at, comma = 0, -1  # comma: position of a comma that only space and comments follow
    last = ""  # character before, without space and comments
    while at < len(text):
        char = text[at]
        if char == '"':
            at, comma, last = _string_end(text, at), -1, '"'
        elif text.startswith(("//", "/*"), at):
            end = _comment_end(text, at)
            for index in range(at, end):
                if text[index] not in "\r\n":
                    chars[index] = " "
            at = end
        else:
            if char in "]}" and comma >= 0:
                chars[comma] = " "
            if not char.isspace():
                comma = at if char == "," and last not in {"", "[", "{", ","} else -1
                last = char
            at += 1
    return "".join(chars)


def _string_end(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _comment_end(text: str, start: int) -> int:
    if text.startswith("//", start):
        end = text.find("\n", start)
        return len(text) if end < 0 else end
    end = text.find("*/", start + 2)
    return len(text) if end < 0 else end + 2
