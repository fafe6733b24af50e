"""For a user's own project: settings, progress, and the template."""
