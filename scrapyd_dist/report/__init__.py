"""One crawl as a page: values from the store, their series, and the page around them.

Invariant: the page is one file that fetches nothing and runs nothing; every foreign text on it is
escaped.
"""
