"""Commands that bring code to the nodes, and take it back."""
