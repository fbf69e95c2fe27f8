"""Answers how the fleet is: its nodes, what is wrong with them, what runs there; prints nothing."""
