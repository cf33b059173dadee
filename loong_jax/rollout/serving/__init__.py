"""Serving: a replica behind an OpenAI-compatible HTTP interface and JetStream's gRPC protocol.

    request                  limits, requests and events; texts and conversations to tokens
    scheduler                requests of all clients on one replica, a block at a time; metrics
    frontend                 parts that both interfaces share
    openai_schema, http      the HTTP interface: its bodies, its routes and answers
    grpc_service             the gRPC interface: its messages, its services
    server                   both interfaces in one event loop

Importing the package itself imports nothing.
"""
