"""What makes the sample that the project ships: a fictional bank's handbook, questions, answers, reviews and thumbs."""
