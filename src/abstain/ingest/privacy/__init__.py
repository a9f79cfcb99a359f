"""Personal data: redact what users typed and pseudonymise users, before anything is written."""
