"""How near do several hosts come to the limit of their link?"""
