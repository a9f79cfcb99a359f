"""One label an answer, from reviews and thumbs, and the training table that holds it."""
