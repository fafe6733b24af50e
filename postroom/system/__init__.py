"""Linux: processes and their trees, control groups, file events, the page cache."""
