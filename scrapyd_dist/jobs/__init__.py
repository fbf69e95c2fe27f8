"""Plain jobs: what finds, judges, starts, waits for and ends them. It prints nothing."""
