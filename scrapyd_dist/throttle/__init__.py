"""The throttle: one limit of requests per domain for all workers of a store."""
