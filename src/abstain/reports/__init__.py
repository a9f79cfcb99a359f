"""What people read: the evaluation report, the pages about data, the plots."""
