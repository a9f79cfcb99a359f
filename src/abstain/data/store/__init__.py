"""Reading the data folder: rows, identities, data frames, splits, states."""
