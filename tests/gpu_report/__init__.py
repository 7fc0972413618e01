"""What works on a card, on one page: `make gpu-report`."""
