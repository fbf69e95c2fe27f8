"""Commands about nodes: how they are, whether they take work, what is wrong with them, what code they have."""
