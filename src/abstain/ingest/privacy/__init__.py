"""Personal data: redact what users typed and pseudonymize users, before anything is written."""
