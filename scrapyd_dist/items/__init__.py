"""Items on their way home: parts, feeds and item files, fetched, checked and merged."""
