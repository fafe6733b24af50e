"""Python functions as jobs: `@postroom.job`."""
