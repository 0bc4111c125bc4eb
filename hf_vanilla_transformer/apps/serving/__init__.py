"""The server: limits, batches of texts from many callers, metrics; routes are in `http/`, the page in `page/`."""
