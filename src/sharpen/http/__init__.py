"""HTTP for every room: a client with kept connections, a socket to listen on, and an ASGI server in a thread."""
