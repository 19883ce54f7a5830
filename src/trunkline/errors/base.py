"""Where the tree of exceptions begins."""

__all__ = ["TrunklineError"]


class TrunklineError(Exception):
    """Anything that Trunkline raises on purpose."""
