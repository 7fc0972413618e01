"""Methods of papers, one room each. They import the rest of ringar, and nothing there imports them.

Their public names are in `ringar`, `ringar.parallel` and `ringar.layers`.
"""
