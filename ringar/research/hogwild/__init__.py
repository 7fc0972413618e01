"""Hogwild!: ranks of a host that train one copy of the weights, without locks."""
