"""The pages of `sdist web`: routes, templates, and answers that all viewers share.

The rule it keeps: nothing is computed here. What a page shows is the document that a command prints
with `--json`, or comes from the same functions.
"""
