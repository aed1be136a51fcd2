"""What the stores in SQLite and in PostgreSQL share: the rows, the questions that the rules ask, and the search."""
