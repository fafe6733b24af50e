"""The command line: a thin skin, one file per verb, that nothing else imports."""
