"""The data folder: rows as they are stored, what validates them, and the labels made of them."""
