"""The throttle: one request limit per domain for all workers of a store."""
