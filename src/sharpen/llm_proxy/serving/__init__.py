"""Starting the gateway in a thread or a process, and speaking with it."""
