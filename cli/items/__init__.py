"""Commands about items: fetch them, merge them, follow them."""
