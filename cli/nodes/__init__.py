"""Commands about nodes: their state and their work, what is wrong with them, and their code."""
