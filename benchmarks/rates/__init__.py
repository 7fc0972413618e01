"""How fast do the cores of this machine copy, in their own caches and to each other?"""
