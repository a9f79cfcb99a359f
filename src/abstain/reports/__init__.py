"""Reports for people: the evaluation report, the pages about data, the plots."""
