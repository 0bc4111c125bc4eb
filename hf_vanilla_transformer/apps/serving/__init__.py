"""The server: its limits, batches of texts from many clients, and metrics. `http/` has the routes, `page/` the page."""
