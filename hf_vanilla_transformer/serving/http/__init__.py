"""The server's HTTP: routes, schemas of requests and responses, limits for slow clients, and uvicorn."""
