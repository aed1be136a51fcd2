"""Programs that an earlier version began and this one continues: both run the same code."""
