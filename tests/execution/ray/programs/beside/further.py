"""Imported by a module that the program imports."""

ADDED = 1
