"""The workers: one is sent its batch, the other leases batches; their parts, reports, ledgers and leases."""
