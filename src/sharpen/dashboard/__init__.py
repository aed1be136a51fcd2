"""The dashboard: pages over run folders and stores, served by one process, with nothing fetched from elsewhere.

`app.make_app` builds it over a source (needs the extra `dashboard`); `dashboard_app` is the same over a store that is
open already, for the mounts of a store server. Nothing heavy is imported before the first request.
"""

from .mounted import dashboard_app

__all__ = ["dashboard_app"]
