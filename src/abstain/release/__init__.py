"""Whether a candidate replaces the champion, and which version is in production."""
