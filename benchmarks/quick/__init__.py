"""What should take no time: small arrays, begins of epochs, starts of jobs."""
