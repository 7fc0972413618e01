"""The command line of `ringarrun`: its options, its help, and what it does first."""
