"""The studies of the papers, by name."""
