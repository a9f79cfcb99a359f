"""Sources of the sample that the project ships: a fictional bank's handbook, questions, answers and feedback."""
