"""The crawl frontier: its values, which slot a request lies in, how it is cut and added, who may still add to it."""
