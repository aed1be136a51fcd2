"""What an earlier version wrote is read, continued and trained on by this one."""
