"""The worker half that every job has: what it was given, its part and its report, its way to the store, its lease."""
