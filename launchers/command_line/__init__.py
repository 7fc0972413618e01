"""The command line of `ringarrun`: its options, its help, and its first steps."""
