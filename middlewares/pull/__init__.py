"""A worker that leases its batches, one after the other, until no more will come. It travels in the egg."""
