"""Commands about frontiers: their slots, and the manager of their workers."""
