"""What cutting a sparse net along its edges costs, and how fast it is."""
