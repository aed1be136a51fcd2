"""Where the database is, and how a connection to it is opened. Its password is shown nowhere."""

import math
import time

from ...errors import InvalidInputError, MissingExtraError, StoreFileError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError:
    raise MissingExtraError.of("psycopg", extra="postgres", feature="PostgresStore") from None

OLDEST_VERSION = 120_000
_UNREADABLE = (
    "database_url is not a valid URL: use postgresql://user:password@host:5432/database and percent-encode special "
    "characters (@ / : %), for example @ as %40"
)
FROZEN_SECONDS = 60  # a process that stops in the middle of a transaction holds its rows no longer


class Address:
    """A URL of a database, with what every connection to it gets."""

    def __init__(self, database_url: str, *, busy_seconds: float) -> None:
        if not isinstance(database_url, str) or not database_url.startswith(("postgresql://", "postgres://")):
            shown = str(database_url).split("@")[-1].split("?")[0]  # no password, also in a URL with a typing error
            raise InvalidInputError(f"database_url is {shown!r}: use postgresql://user:password@host:5432/database")
        try:
            given = conninfo_to_dict(database_url)
        except psycopg.Error:  # its text quotes the URL
            raise InvalidInputError(_UNREADABLE) from None
        if any("@" in str(given.get(name, "")) for name in ("host", "port", "dbname")):
            raise InvalidInputError(_UNREADABLE)  # a part of the password stands there
        seconds = max(2, math.ceil(busy_seconds))
        self._password = str(given.get("password") or "")
        self._options = {
            "connect_timeout": seconds,
            "keepalives_idle": seconds,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": seconds * 1000,
            "application_name": "sharpen",
            **given,
            "client_encoding": "utf8",
        }
        host = given.get("host") or given.get("hostaddr") or "local"
        port = f":{given['port']}" if given.get("port") else ""
        self.label = f"{host}{port}/{given.get('dbname') or given.get('user') or ''}"
        """Where it is, in words that anybody may read."""
        self.failure: tuple[float, psycopg.Error] | None = None
        """When and why the last connection, of any thread, could not be opened; None if it could."""

    def __repr__(self) -> str:
        return f"Address({self.label!r})"

    def words(self, error: BaseException) -> str:
        """What the server or the driver says, on one line and without the password."""
        text = " ".join(str(error).split())
        return text.replace(self._password, "***") if self._password else text

    def connect(self, *, lock_seconds: float, read_only: bool = False) -> "psycopg.Connection":
        """A connection in autocommit mode; raises what `psycopg.connect` does."""
        try:
            connection = psycopg.connect("", autocommit=True, prepare_threshold=None, **self._options)  # type: ignore[arg-type]
        except psycopg.Error as error:
            self.failure = time.monotonic(), error.with_traceback(None)
            raise
        self.failure = None
        try:
            self._check(connection)
            connection.execute(_settings(lock_seconds=lock_seconds, read_only=read_only).encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def is_starting(self) -> bool:
        """Whether a server is there that takes no connections yet: it starts, recovers from a crash, or stops."""
        # The reason of a refused connection is told in the language of the server; a ping reads its code.
        ping = psycopg.pq.PGconn.ping(make_conninfo("", **self._options).encode())
        return ping == psycopg.pq.Ping.REJECT

    def _check(self, connection: "psycopg.Connection") -> None:
        if connection.info.server_version < OLDEST_VERSION:
            raise StoreFileError(
                f"the database {self.label} is PostgreSQL {connection.info.server_version // 10_000}: "
                f"version {OLDEST_VERSION // 10_000} or newer is required"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreFileError(
                f"the database {self.label} has the encoding {encoding}: create a database with encoding UTF8"
            )


def _settings(*, lock_seconds: float, read_only: bool) -> str:
    values = {
        "default_transaction_isolation": "'read committed'",
        "default_transaction_read_only": "on" if read_only else "off",
        # What the rules ask has one good plan each, by an index, also while a table is small or was never analysed.
        "enable_seqscan": "off",
        "plan_cache_mode": "force_generic_plan",
        "idle_in_transaction_session_timeout": FROZEN_SECONDS * 1000,
        "jit": "off",
        "lock_timeout": max(1, int(lock_seconds * 1000)),
        "statement_timeout": 0,
    }
    return "; ".join(f"SET {name} = {value}" for name, value in values.items())
