"""Keeps the workers of a frontier running: how many and where, their results, and what follows when they fail."""
