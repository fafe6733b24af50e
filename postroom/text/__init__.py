"""How people write values, and how text is shown to them safely."""
