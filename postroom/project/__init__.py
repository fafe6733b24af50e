"""What the user's own project stands on: settings, progress, and the template."""
