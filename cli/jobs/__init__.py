"""Commands about single jobs: start them, list them, read their logs, stop them."""
