"""The content of pages as plain values, which the templates place."""
