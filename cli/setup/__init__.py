"""Commands about a project's own configuration, and about what runs sdist at given times."""
