"""Functions as jobs: `@postroom.job`."""
