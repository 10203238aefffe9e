"""What `make bench` measures. Nothing else in the program imports this."""
