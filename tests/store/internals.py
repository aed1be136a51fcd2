"""What the tests use of `sharpen.store` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.store import backup, memory, openapi, search
    from sharpen.store.backup import backup_store
    from sharpen.store.base import new_id
    from sharpen.store.database import Job
    from sharpen.store.lifecycle import StoreClock
    from sharpen.store.local import BroadcastWaiters, LocalStore
    from sharpen.store.methods import METHODS
    from sharpen.store.opening import DatabaseAddress, ServerAddress, address_of, open_url
    from sharpen.store.postgres import connection as postgres_connection, store as postgres_store
    from sharpen.store.postgres.connection import Session as PostgresSession
    from sharpen.store.postgres.schema import MIGRATIONS
    from sharpen.store.redis import store as redis_store
    from sharpen.store.redis.listening import READY_SECONDS
    from sharpen.store.redis.scripts import COMMIT, SHA
    from sharpen.store.redis.tables import HOLD_MILLISECONDS
    from sharpen.store.server import MAX_WAIT_SECONDS, StoreApp
    from sharpen.store.spool import Entry, Spool, default_folder
    from sharpen.store.sql import search as sql_search
    from sharpen.store.sqlite import schema as sqlite_schema, store as sqlite
    from sharpen.store.token_files import VARIABLE, given_token, left_in_file, read_token, token_file
    from sharpen.store.transitions import FINISHED, OPEN, PHASES, QUEUED

__getattr__ = imports_on_use(__file__)
