"""The package version, used by the build, the installed metadata and the server's `serverInfo`."""

__all__ = ["__version__"]

__version__ = "0.1.0"
