"""Backup of a home to a folder, and restore into an empty one."""
