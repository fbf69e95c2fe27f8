"""The commands about single jobs and items: they start, list, read, search and stop them."""
