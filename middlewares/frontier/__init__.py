"""What fills a frontier (a crawl, a process of its own, a list), and the process that has one worked off."""
