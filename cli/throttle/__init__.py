"""The commands about the throttle."""
