"""Servers: an ASGI base with the checks that all of them share, a bounded HTTP protocol, and serving in a thread."""
