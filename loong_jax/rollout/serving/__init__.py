"""Serving: a replica behind an OpenAI-compatible HTTP interface and JetStream's gRPC protocol.

    request, open_requests   limits, requests and events; a request on its way, sample by sample
    text, prompts            tokens to text as they come; texts and conversations to tokens
    scheduler                the one thread that drives the replica for all clients
    frontend                 what both interfaces share
    openai_schema, http      the HTTP interface: its bodies, its routes
    connection, completions  its connections, and the answers to both kinds of completions
    messages, grpc_service   the gRPC interface: its messages, its services
    metrics, server          figures for Prometheus; both interfaces in one event loop

Extra: `serve`. Importing the package itself imports nothing.
"""
