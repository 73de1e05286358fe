"""`asv publish`: from what is recorded to the pages. Its entry is `publish` (command.py)."""
