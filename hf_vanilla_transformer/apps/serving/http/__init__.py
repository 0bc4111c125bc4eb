"""The HTTP side of the server: routes, bodies of requests and responses, error responses, and limits for clients."""
