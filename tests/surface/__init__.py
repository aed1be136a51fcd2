"""The public surface as committed text: names and signatures, the command line, `--json`, exit codes, HTTP, spans."""
