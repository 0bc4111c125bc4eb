"""The server's HTTP: routes, schemas and bodies of requests, error responses, limits of headers and bodies, uvicorn."""
