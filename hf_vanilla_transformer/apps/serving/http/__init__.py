"""The server's HTTP interface: routes, request and response bodies, error responses, and limits for clients."""
