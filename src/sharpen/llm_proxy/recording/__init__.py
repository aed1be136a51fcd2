"""Exchanges kept and played again."""
