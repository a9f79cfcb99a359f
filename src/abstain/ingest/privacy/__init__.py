"""Personal data: redact what users typed, pseudonymise users, before anything is written."""
