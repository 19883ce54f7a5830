"""The version of this package, in one place: what is built, what is installed and what a server says of itself."""

__all__ = ["__version__"]

__version__ = "0.1.0"
