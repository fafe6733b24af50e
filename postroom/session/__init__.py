"""A GPU session: the guardian that pins and watches, and the worker that runs jobs."""
