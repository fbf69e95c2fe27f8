"""Commands about crawls, from start to removal; and the limits of the throttle."""
