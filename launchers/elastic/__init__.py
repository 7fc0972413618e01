"""Jobs whose ranks change: which processes make the next world, on this host or on several."""
