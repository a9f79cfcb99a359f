"""What a stranger may try, each with its number of attempts, all of which must fail."""
