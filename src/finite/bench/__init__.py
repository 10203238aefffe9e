"""What `make bench` measures and `make story` trains. Nothing else in the program imports this."""
