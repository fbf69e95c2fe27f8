"""The commands about the throttle: the limit of each domain, which gets none, and how all of them stand."""
