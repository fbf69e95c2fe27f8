"""Commands about crawls: start, watch, go on, try again, report, remove; and the limits of the throttle."""
