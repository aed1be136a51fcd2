"""The HTTP client: kept connections, proxies, and bodies that are read as they arrive."""
