"""Commands about single jobs and items: start them, list them, read their logs and items, stop them."""
