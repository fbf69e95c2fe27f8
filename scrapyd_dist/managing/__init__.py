"""The manager of a frontier's workers: how many and where, what they bring home, what becomes of those that fail."""
