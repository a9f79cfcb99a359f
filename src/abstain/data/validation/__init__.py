"""Great Expectations suites on rows and on the training table; drift against earlier batches."""
