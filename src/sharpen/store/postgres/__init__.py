"""The store in a PostgreSQL database, before which several processes and store servers may stand."""

from ...errors import MissingExtraError

try:
    import psycopg  # noqa: F401
except ImportError as error:
    raise MissingExtraError.of("psycopg", extra="postgres", feature="PostgresStore") from error

from .store import PostgresStore

__all__ = ["PostgresStore"]
