"""Back-propagation as a parallel scan."""
